"""Tensors that lie on several ranks: how they are cut, what ranks agree on, and sums over ranks."""
