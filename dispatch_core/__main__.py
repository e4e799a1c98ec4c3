"""`python -m dispatch_core`: the command line, where the script `dispatch` is not on the path.

It holds nothing of its own, so that both ways in are one.
"""

import sys

from dispatch_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
