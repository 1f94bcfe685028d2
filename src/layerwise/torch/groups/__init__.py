"""Parameter groups: what the caller passes, and the settings of each parameter that follow from it.

`_arguments.py` checks parameters as they are passed, and `_members.py` keeps their names. `_rules.py` knows the rule
of each group and the values of options, and `_options.py` the keys of a group and its options.
"""
