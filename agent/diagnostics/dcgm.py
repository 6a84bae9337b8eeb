"""Runs NVIDIA's own diagnostic (DCGM) and parses its results."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from agent.diagnostics.check_progress import CheckProgress, DiagnosticStopped

DCGM_LEVEL = "2"


class DcgmUnavailable(Exception):
    """DCGM can't be used on this host. The message gives the reason."""


def run_dcgm(progress: CheckProgress, index: int, seconds: float) -> None:
    """Run NVIDIA's diagnostic on the GPU with this index, for at most ``seconds``.

    Raises DcgmUnavailable, or DiagnosticStopped after SIGTERM.
    """
    program = shutil.which("dcgmi")
    if program is None:
        raise DcgmUnavailable("dcgmi is not installed")
    progress.step("dcgm")
    command = [program, "diag", "-r", DCGM_LEVEL, "-i", str(index), "-j"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + seconds
    while True:
        try:
            printed, errors = process.communicate(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            try:
                progress.raise_if_stopped()
            except DiagnosticStopped:
                process.terminate()
                process.communicate()
                raise
            if time.monotonic() > until:
                process.kill()
                process.communicate()
                progress.report_check("dcgm", False, {"seconds": round(seconds)}, "it did not end in time")
                return
    results = list(parse_dcgm_results(printed))
    if not results:
        detail = " ".join((errors or printed).split())[:150]
        raise DcgmUnavailable(f"dcgmi ended with {process.returncode} and no result: {detail}")
    for name, status, detail in results:
        passed = {"pass": True, "fail": False}.get(status.lower())
        progress.report_check(name[:40], passed, {"status": status}, detail[:200])


def parse_dcgm_results(printed: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name of the test, status, detail) of each result in the output of ``dcgmi diag -j``.

    NVIDIA publishes no schema of this JSON. Therefore every object with a ``name`` and a list of ``results``
    counts as a test. A result without a ``status`` is ignored.
    """
    start = printed.find("{")
    try:
        whole, _ = json.JSONDecoder().raw_decode(printed[start:]) if start >= 0 else ({}, 0)
    except ValueError:
        return
    pending: list[Any] = [whole]
    while pending:
        item = pending.pop(0)
        if isinstance(item, list):
            pending = item + pending
        elif isinstance(item, dict):
            results = item.get("results")
            if isinstance(item.get("name"), str) and isinstance(results, list):
                yield from (
                    (item["name"], str(result["status"]), _result_detail(result))
                    for result in results
                    if _has_status(result)
                )
            else:
                pending = list(item.values()) + pending


def _has_status(result: Any) -> bool:
    return isinstance(result, dict) and isinstance(result.get("status"), str)


def _result_detail(result: dict[str, Any]) -> str:
    warnings = result.get("warnings")
    texts = [
        warning.get("warning", "") if isinstance(warning, dict) else str(warning)
        for warning in warnings or []
    ]
    return " ".join(filter(None, [*texts, str(result.get("info") or "")]))
