"""`python -m unmask` is the command `unmask`."""

import sys

from unmask.cli import main

if __name__ == "__main__":
    sys.exit(main())
