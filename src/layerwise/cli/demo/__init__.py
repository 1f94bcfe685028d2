"""`layerwise demo`: what these optimizers are for, in three acts on real data.

This process shows and writes; worker processes train, and they alone import PyTorch.
"""
