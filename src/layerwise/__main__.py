"""`python -m layerwise` is the command `layerwise`."""

from layerwise.cli import main

main()
