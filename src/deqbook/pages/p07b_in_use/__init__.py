"""Experiments of chapters/07b_in_use.md."""
