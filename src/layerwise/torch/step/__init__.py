"""A step of the PyTorch API, from parameter groups to the jobs of engines."""
