"""Claims and experiments of chapters/03b_three_networks.md."""
