"""Experiments of chapters/06b_bound_on_data.md."""
