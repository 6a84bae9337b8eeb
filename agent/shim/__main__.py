"""Starts the shim: ``python -I -S FOLDER RUN_DIR [epilog]``.

FOLDER contains this file and a copy of its package.
"""

import sys

from agent.shim.supervisor import main

if __name__ == "__main__":
    main(*sys.argv[1:])
