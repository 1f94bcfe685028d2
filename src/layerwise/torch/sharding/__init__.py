"""Tensors on several ranks: their cuts, the agreement of ranks, and sums over ranks."""
