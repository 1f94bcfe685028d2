"""What measures steps: tensors, implementations that take turns on them, and tables of their figures."""
