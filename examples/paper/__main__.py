"""`python -m examples.paper`: see `cli.py`."""

from .cli import main

main()
