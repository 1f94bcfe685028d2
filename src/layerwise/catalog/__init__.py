"""All optimizers by name: their list, presets and docstrings, and the parameters that some leave to other rules."""
