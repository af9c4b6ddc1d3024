"""Claims and experiments of chapters/03a_linear_rates.md."""
