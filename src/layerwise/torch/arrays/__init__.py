"""PyTorch as engines use it: its functions, its tensors, and lists of them."""
