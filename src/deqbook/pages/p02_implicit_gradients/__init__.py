"""Claims and experiments of chapters/02_implicit_gradients.md."""
