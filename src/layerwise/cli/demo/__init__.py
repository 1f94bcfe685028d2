"""`layerwise demo`: a small network trained by each optimizer, at a small and at a large batch."""

from layerwise.cli.demo.run import run_demo

__all__ = ["run_demo"]
