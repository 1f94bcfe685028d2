"""Drawings of benchmark rows, one module each; `pictures.py` writes them."""
