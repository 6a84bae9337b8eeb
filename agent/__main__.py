"""Runs the agent's command line: ``python -m agent run | join | probe | ...``"""

from agent.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
