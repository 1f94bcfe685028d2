"""PyTorch as the rule engine uses it.

`_library.py` has its functions, and reads and writes single tensors. `_lists.py` makes many tensors one array of a
rule, for which `_list_functions.py` has the functions.
"""
