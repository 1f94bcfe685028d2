"""Saving and loading: by name, from older versions, and from other packages (`foreign/`).

`_saving.py` is the form in which an optimizer is saved. `_loading.py` loads: `_origin.py` finds out who wrote the
checkpoint, `_matching.py` which of its entries belong to which parameter, and `_rates.py` the rates that go on.
"""
