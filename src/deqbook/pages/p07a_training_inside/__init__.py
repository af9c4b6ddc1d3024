"""Claims and experiments of chapters/07a_training_inside.md."""
