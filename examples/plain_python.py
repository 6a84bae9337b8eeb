"""Compute a long sum, which can be preempted at any step without a change of the result. Needs only Python.

STEPS is the number of steps. PAUSE is the number of seconds of each step.
"""

import json
import os
import time

import gpupool_contract as gpupool

STEPS = int(os.environ.get("STEPS", "100"))
PAUSE = float(os.environ.get("PAUSE", "0.1"))
state_file = gpupool.checkpoint_dir() / "state.json"
state = json.loads(state_file.read_text()) if state_file.exists() else {"step": 0, "sum": 0}

while state["step"] < STEPS:
    state = {"step": state["step"] + 1, "sum": state["sum"] + state["step"]}
    time.sleep(PAUSE)
    if gpupool.notice():
        part = state_file.with_suffix(".part")
        part.write_text(json.dumps(state))
        part.replace(state_file)
        gpupool.checkpoint_done()
        raise SystemExit(0)

print("sum", state["sum"])
