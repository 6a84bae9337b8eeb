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
    """DCGM can't be asked here; the message says why."""


def run_dcgm(look: CheckProgress, index: int, seconds: float) -> None:
    """NVIDIA's own diagnostic, where the host has it. Raises DcgmUnavailable."""
    program = shutil.which("dcgmi")
    if program is None:
        raise DcgmUnavailable("dcgmi is not installed")
    look.step("dcgm")
    command = [program, "diag", "-r", DCGM_LEVEL, "-i", str(index), "-j"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + seconds
    while True:
        try:
            printed, complaint = process.communicate(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            try:
                look.raise_if_stopped()
            except DiagnosticStopped:
                process.terminate()
                process.communicate()
                raise
            if time.monotonic() > until:
                process.kill()
                process.communicate()
                look.found("dcgm", False, {"seconds": round(seconds)}, "it did not end in time")
                return
    results = list(parse_dcgm_results(printed))
    if not results:
        words = " ".join((complaint or printed).split())[:150]
        raise DcgmUnavailable(f"dcgmi ended with {process.returncode} and no result: {words}")
    for name, status, words in results:
        passed = {"pass": True, "fail": False}.get(status.lower())
        look.found(name[:40], passed, {"status": status}, words[:200])


def parse_dcgm_results(printed: str) -> Iterator[tuple[str, str, str]]:
    """(test, status, words) of the JSON of ``dcgmi diag -j``. NVIDIA publishes no schema of it, so every object that has a name and
    results with a status is taken for a test, wherever it lies."""
    start = printed.find("{")
    try:
        whole, _ = json.JSONDecoder().raw_decode(printed[start:]) if start >= 0 else ({}, 0)
    except ValueError:
        return
    waiting: list[Any] = [whole]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, list):
            waiting = one + waiting
        elif isinstance(one, dict):
            results = one.get("results")
            if isinstance(one.get("name"), str) and isinstance(results, list):
                yield from (
                    (one["name"], str(each["status"]), _result_detail(each))
                    for each in results
                    if _has_status(each)
                )
            else:
                waiting = list(one.values()) + waiting


def _has_status(result: Any) -> bool:
    return isinstance(result, dict) and isinstance(result.get("status"), str)


def _result_detail(result: dict[str, Any]) -> str:
    warnings = result.get("warnings")
    told = [each.get("warning", "") if isinstance(each, dict) else str(each) for each in warnings or []]
    return " ".join(filter(None, [*told, str(result.get("info") or "")]))
