"""`python -m examples.certified`: see `cli.py`."""

from .cli import main

main()
