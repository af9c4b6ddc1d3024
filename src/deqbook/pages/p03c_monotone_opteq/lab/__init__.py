"""Experiments of chapters/03c_monotone_opteq.md: networks, bounds of the proofs, and descents."""
