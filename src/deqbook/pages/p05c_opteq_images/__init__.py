"""Claims and experiments of chapters/05c_opteq_images.md."""
