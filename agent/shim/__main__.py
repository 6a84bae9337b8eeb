"""``python -I -S FOLDER RUN_DIR [epilog]``: FOLDER holds this file, and beside it the package that it comes from."""

import sys

from agent.shim.supervisor import main

if __name__ == "__main__":
    main(*sys.argv[1:])
