"""What these optimizers are for, in three acts on real data: `python -m demo` in a checkout, or `make demo`.

This process shows and writes; worker processes train, and they alone import PyTorch.
"""
