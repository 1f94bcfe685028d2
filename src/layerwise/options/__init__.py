"""Options of optimizers: each with its check, default and meaning, and the ways to pass one.

`settings.py` is the base of all rules' options; `fields.py` declares their fields, each with a check of `checks.py`.
`by_name.py` reads options that are passed by parameter name, `names.py` has the options' names in each API, and
`misspellings.py` finds the option that a wrong name stands for. `arguments.py` has the arguments of the APIs that are
not part of a formula.
"""
