"""Claims and experiments of chapters/05b_selection.md."""
