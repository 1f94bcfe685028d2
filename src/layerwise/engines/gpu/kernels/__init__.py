"""Triton kernels: those of each rule, cut at its yields, and those that rules share."""
