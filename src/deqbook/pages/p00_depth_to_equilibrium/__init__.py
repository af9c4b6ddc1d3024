"""Claims and experiments of chapters/00_depth_to_equilibrium.md."""
