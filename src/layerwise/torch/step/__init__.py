"""A step of PyTorch's front, from parameter groups to the jobs of engines."""
