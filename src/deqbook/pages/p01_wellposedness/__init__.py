"""Claims and experiments of chapters/01_wellposedness.md."""
