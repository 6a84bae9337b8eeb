"""Tests one GPU, or one MIG instance, in a process that holds the lock of the GPU.

    python -m agent.diagnostics.gpu_check --deadline 600 [--tool ...]

It prints one line of JSON that names its tool, one line before each check, one line after each check, and one
line at the end. If DCGM can't be used, the option ``--tool auto`` prints a second tool:

    {"tool": "dcgm" | "own" | "simulated" | NAME}
    {"step": "memory"}
    {"check": {"name", "passed", "numbers", "detail"}}
    {"end": "passed" | "failed" | "stopped", "detail": ...}

At the deadline the kernel of the host ends the process with SIGALRM, even if a CUDA call hangs. On SIGTERM
the process stops between two steps, so that a workload can use the GPU.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from agent.diagnostics.builtin_checks import run_builtin_checks
from agent.diagnostics.check_progress import CheckProgress, DiagnosticStopped, print_json
from agent.diagnostics.cuda import CudaError
from agent.diagnostics.dcgm import DcgmUnavailable, run_dcgm
from agent.diagnostics.operator_check import run_operator_program

# Errors of cuda.h that do not prove a fault of the GPU, such as out of memory, another driver version or
# unsupported PTX.
INCONCLUSIVE_CUDA_ERRORS = frozenset({2, 3, 34, 46, 218, 222, 223, 500, 803, 804})
DCGM_MARGIN_SECONDS = 5.0
SIMULATED_STEP_SECONDS = 0.3


def run_simulated(progress: CheckProgress, fault: str) -> None:
    """Report the checks of a simulated GPU. Only the check named ``fault`` fails."""
    for name in ("memory", "bandwidth", "arithmetic"):
        progress.step(name)
        for _ in range(3):
            time.sleep(SIMULATED_STEP_SECONDS / 3)
            progress.raise_if_stopped()
        is_planted = name == fault
        progress.report_check(
            name,
            not is_planted,
            {},
            "planted on a simulated GPU" if is_planted else "simulated: nothing was measured",
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the diagnostic, print how it ended, and return the exit status."""
    parser = argparse.ArgumentParser(prog="agent.diagnostics.gpu_check", allow_abbrev=False)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--tool", choices=("auto", "own", "dcgm", "simulated", "operator"), default="own")
    parser.add_argument("--name", default="", help="name of the operator's diagnostic")
    parser.add_argument("command", nargs="*", help="command of the operator's diagnostic")
    parser.add_argument("--index", type=int, default=0, help="index of the GPU, for DCGM")
    parser.add_argument("--fault", default="")
    options = parser.parse_args(arguments)
    # Keep the default action of SIGALRM, which ends the process. A Python handler would run only after a
    # hanging CUDA call has returned.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, options.deadline))
    progress = CheckProgress()
    signal.signal(signal.SIGTERM, progress.stop)
    try:
        _run_tool(progress, options)
    except DiagnosticStopped:
        print_json({"end": "stopped", "detail": "it was cancelled: a workload needs the GPU"})
    except CudaError as error:
        if error.code in INCONCLUSIVE_CUDA_ERRORS and not progress.failed:
            print_json({"end": "stopped", "detail": str(error)})
            return 0
        progress.report_check("driver", False, {"code": error.code}, str(error))
        print_json({"end": "failed", "detail": "; ".join(progress.failed)})
    except OSError as error:
        tool = options.name or "the CUDA driver"
        print_json({"end": "stopped", "detail": f"{tool} can't be loaded: {error}"})
    except DcgmUnavailable as error:
        print_json({"end": "stopped", "detail": str(error)})
    else:
        end = "failed" if progress.failed else "stopped" if progress.unknown else "passed"
        print_json({"end": end, "detail": "; ".join(progress.failed) or progress.unknown})
    return 0


def _run_tool(progress: CheckProgress, options: argparse.Namespace) -> None:
    if options.tool == "simulated":
        print_json({"tool": "simulated"})
        return run_simulated(progress, options.fault)
    if options.tool == "operator":
        print_json({"tool": options.name})
        return run_operator_program(
            progress, options.name, options.command, options.deadline - DCGM_MARGIN_SECONDS
        )
    if options.tool in ("auto", "dcgm"):
        try:
            print_json({"tool": "dcgm"})
            return run_dcgm(progress, options.index, options.deadline - DCGM_MARGIN_SECONDS)
        except DcgmUnavailable as error:
            if options.tool == "dcgm":
                raise
            progress.report_check("dcgm", None, {}, f"{error}; the built-in checks run instead")
    print_json({"tool": "own"})
    return run_builtin_checks(progress)


if __name__ == "__main__":
    sys.exit(main())
