"""The parts of `benchmarks/gpu.py`: everything about our optimizers that only a GPU can tell."""
