"""Claims and experiments of chapters/03c_monotone_opteq.md."""
