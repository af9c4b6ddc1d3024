"""Experiments of chapters/05a_hidden_objective.md."""
