"""The version, apart from everything that pages import: a release leaves their cache alone."""

__version__ = "0.2.0"
