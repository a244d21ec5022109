"""What can be said of a network from its weights."""
