"""python -m agent run | probe | plant-xid"""

from agent.commands import main

if __name__ == "__main__":
    raise SystemExit(main())
