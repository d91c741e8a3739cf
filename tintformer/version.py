"""The version, where every part of the package can read it without importing the whole."""

__version__ = "0.1.0"
"""The version of the package."""
