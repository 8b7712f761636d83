"""A run from its job to its results."""
