"""Triton kernels: each rule's, cut where it yields, and what they share."""
