"""Readers of the maps that other packages have of their flat shards."""
