"""Compiled part of layerwise."""

def compiler() -> str:
    """The compiler that built this extension."""
