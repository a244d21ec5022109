"""Other libraries that do the same, for those who have them: `pip install ".[benchmarks]"`."""

import importlib
import sys


def runs(module, trial):
    """Whether a module is there and a trial of it runs; if not, a line says so."""
    try:
        importlib.import_module(module)
        trial()
    except Exception as error:  # Libraries for older versions of Keras fail in many ways.
        reason = str(error).splitlines()[0] if str(error) else ""
        print(f"{module} is left out: {type(error).__name__}: {reason}", file=sys.stderr)
        return False
    return True
