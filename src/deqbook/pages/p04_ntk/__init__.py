"""Claims and experiments of chapters/04_ntk.md."""
