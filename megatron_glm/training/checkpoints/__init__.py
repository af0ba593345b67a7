"""A run's saves, and what it starts from or goes back to."""
