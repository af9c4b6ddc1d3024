"""Experiments of chapters/04_ntk.md."""
