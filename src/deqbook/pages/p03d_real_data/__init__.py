"""Claims and experiments of chapters/03d_real_data.md."""
