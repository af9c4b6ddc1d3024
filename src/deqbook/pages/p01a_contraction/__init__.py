"""Claims and experiments of chapters/01a_contraction.md."""
