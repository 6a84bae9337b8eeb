"""python -m agent run | probe | plant-xid"""

from agent.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
