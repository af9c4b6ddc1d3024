"""What one case of an experiment does: a function of a frozen case, importable by any worker."""
