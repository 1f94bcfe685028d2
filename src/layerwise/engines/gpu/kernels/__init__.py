"""Triton kernels: those of each rule, cut where it yields, and those that rules share."""
