"""Run one benchmark: `python -m benchmarks NAME [--json] [ARGS]`.

The last line of the output is a JSON object with the figures of the benchmark.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def names() -> list[str]:
    """Return the names of all benchmarks."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def main(arguments: list[str]) -> int:
    """Run the benchmark named by the first argument. Return the exit code.

    With --json, all progress is printed to stderr, and stdout has only the line with the figures.
    """
    if not arguments or arguments[0] not in names():
        print(f"gpupool: name a benchmark: {', '.join(names()) or 'none exist'}", file=sys.stderr)
        return 2
    name, rest = arguments[0], [argument for argument in arguments[1:] if argument != "--json"]
    benchmark = importlib.import_module(f"benchmarks.{name}")
    output, stdout = sys.stdout, sys.stdout
    if "--json" in arguments:
        sys.stdout = sys.stderr
    try:
        figures: dict[str, Any] = benchmark.main(rest)
    finally:
        sys.stdout = stdout
    print(json.dumps(figures), file=output, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
