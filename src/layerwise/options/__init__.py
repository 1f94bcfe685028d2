"""The options of optimizers: each with its check, default and meaning, and the ways to give one.

`settings.py` is the base of all rules' options, whose fields `fields.py` declares, each with a check of `checks.py`.
`by_name.py` reads options given by parameter name; `names.py` has the names that options have in each API, and
`misspellings.py` finds what a wrong one stands for. `arguments.py` are those of the APIs, which no formula knows.
"""
