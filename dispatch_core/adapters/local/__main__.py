"""Starts a runner: `python -I -S <this file> <object folder> <run>`, as the opener of a gate does.

One rule: nothing of the packages above this one is imported, so that a runner costs little and needs nothing installed.
"""

import importlib
import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    importlib.import_module("local.runner").main(sys.argv[1:])
