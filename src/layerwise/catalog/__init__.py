"""All optimizers by name: their list, presets, arguments and docstrings, and what they leave to other rules."""
