"""The command line: `python -m keras_parseval report --help`."""

import sys

from keras_parseval.reports._command_line import main

if __name__ == "__main__":
    sys.exit(main())
