"""Claims and experiments of chapters/01b_monotone.md."""
