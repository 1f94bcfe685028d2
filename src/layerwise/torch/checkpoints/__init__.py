"""Saving and loading: by name, from older versions, and from other packages (`foreign/`).

`_saving.py` is the form in which an optimizer is saved. `_loading.py` loads: `_groups.py` finds out who wrote the
checkpoint and which rates go on, and `_matching.py` which of its entries belong to which parameter.
"""
