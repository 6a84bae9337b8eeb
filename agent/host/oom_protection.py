"""Protects the agent from the kernel's out-of-memory killer.

Shims inherit the protection, so that they can report the end of their workload. Workloads give it up (see
``agent.shim.workload_entry``).
"""

from __future__ import annotations

from pathlib import Path

OOM_SCORE_FILE = Path("/proc/self/oom_score_adj")
AGENT_OOM_SCORE = -900  # as in the service unit; -1000 would protect an agent that leaks memory


def protect_from_oom_killer(file: Path = OOM_SCORE_FILE) -> list[str]:
    """Protect this process. Return a sentence for the notes of the host if the kernel refuses."""
    try:
        if int(file.read_text()) > AGENT_OOM_SCORE:
            file.write_text(str(AGENT_OOM_SCORE))
    except (OSError, ValueError):
        return [
            "If the memory of this host runs out, the kernel may end the agent: "
            "its oom_score_adj can't be set."
        ]
    return []
