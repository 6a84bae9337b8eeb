"""Answers questions about GPUs in a separate process: python -m agent.gpu.nvml

A call into a hung driver can block forever, and killing a process during an NVML call can hang a GPU.
Therefore NVML calls run in this process. If no answer comes, the agent continues without it (see
``agent.gpu.nvml_reader``).

The process reads questions from standard input and prints answers, one JSON object per line:

    {"id": 1, "ask": "hardware" | "sample" | "minute" | "occupancy" | "events" | "conditions"}
    {"id": 1, "ask": "reshape", "about": {...}}      for "about" and the answer see agent.gpu.mig
        ->   {"id": 1, "answer": ...} or {"id": 1, "error": "..."}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml

from agent.gpu.nvml.system import NvmlSystem


def main() -> int:
    """Answer questions from standard input until it ends. Return the exit status."""
    try:
        reader = NvmlSystem()
    except pynvml.NVMLError as error:
        print(json.dumps({"id": 0, "error": str(error)}), flush=True)
        return 1
    handlers: dict[str, Callable[[], Any]] = {
        "hardware": reader.hardware,
        "sample": reader.sample,
        "minute": reader.minute,
        "occupancy": reader.occupancy,
        "events": reader.events,
        "conditions": reader.conditions,
    }
    for line in sys.stdin:
        question = json.loads(line)
        try:
            about = question.get("about")
            answer = {
                "id": question["id"],
                "answer": reader.reshape(about) if about else handlers[question["ask"]](),
            }
        except pynvml.NVMLError as error:
            answer = {"id": question["id"], "error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
