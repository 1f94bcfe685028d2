"""Extras that are imported only when asked for: nothing else depends on them.

`monitor.py` records what steps measure, `records.py` writes it to dashboards and tables (`_files.py`), `heatmap.py`
draws it, and `noise.py` measures the gradient noise scale.
"""
