"""The version that is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("layerwise")
except PackageNotFoundError:  # its sources are on the path, and it was never installed
    __version__ = "0+source"
