"""LAMB, LARS and Adafactor written out element by element in float64, to test the library against."""

from .adafactor import Adafactor
from .lamb import Lamb
from .lars import Lars

__all__ = ["Adafactor", "Lamb", "Lars"]
