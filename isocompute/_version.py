"""The version, apart from the package so that its modules need not import the package."""

__version__ = "0.2.0"
