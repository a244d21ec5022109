"""Tutorials, each a script of its own, and the paper's experiments, `python -m examples.paper`."""
