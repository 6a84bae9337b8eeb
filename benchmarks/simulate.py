"""Run the control plane and four hosts in virtual time with injected faults, and check the invariants.

    ./run bench simulate --seeds 1000
    ./run bench simulate --replay 17        print all events of one seed

Each seed is one simulation of less than two minutes of virtual time. Users submit and cancel work,
reserve GPUs and close hosts. Meanwhile faults are injected:

- Frames are lost, duplicated, late and out of order.
- Hosts lose their connection or restart.
- Agents, shims, engines, the edge and the database are killed.
- Disks fill up, and clocks jump.

`benchmarks/simulation/` describes which components are real and which are simulated. ``violations`` counts
the violated invariants. ``broken`` lists the first violations with their seeds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import conninfo, sql

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ.setdefault("GPUPOOL_LEASE_SECONDS", "12")

SERVICES = ("postgres",)
SHOWN_VIOLATIONS = 20
PROGRESS_EVERY = 10  # seeds between two lines of progress


def main(argv: list[str]) -> dict[str, Any]:
    """Run ``--seeds`` simulations, beginning with the seed ``--first``.

    The simulations are divided among ``--processes`` processes, each with its own database. With
    ``--replay``, run only one simulation and print all of its events.
    """
    parser = argparse.ArgumentParser(prog="./run bench simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--replay", type=int)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    processes = min(options.processes, options.seeds)
    if options.replay is None and processes > 1:
        return _at_once(options.first, options.seeds, processes)

    import logging

    import django

    django.setup()
    logging.disable(logging.ERROR)  # the server logs every injected fault
    from benchmarks.simulation.world import run_simulation

    seeds = (
        [options.replay]
        if options.replay is not None
        else range(options.first, options.first + options.seeds)
    )
    began, steps, violations = time.perf_counter(), 0, []
    gc.disable()  # saves time: a simulation makes millions of objects, but hardly any reference cycles
    for seed in seeds:
        result = run_simulation(seed)
        gc.collect()
        steps += result.steps
        violations += [f"seed {seed}: {sentence}" for sentence in result.violations]
        if options.replay is not None:
            print("\n".join(result.story))
            print(result.digest)
        elif result.violations:
            print(f"seed {seed}: {result.violations[0]}", flush=True)
        elif seed % PROGRESS_EVERY == 0:
            print(f"up to seed {seed}: {steps} steps, {len(violations)} violations", flush=True)
    return {
        "seeds": len(seeds),
        "violations": len(violations),
        "steps": steps,
        "steps_per_second": round(steps / (time.perf_counter() - began)),
        "broken": violations[:SHOWN_VIOLATIONS],
    }


def _at_once(first: int, seeds: int, processes: int) -> dict[str, Any]:
    """Run the simulations in several processes at once and return their combined figures."""
    began, running = time.perf_counter(), []
    for number, url in enumerate(_databases(processes)):
        start, end = (first + seeds * part // processes for part in (number, number + 1))
        command = [sys.executable, "-m", "benchmarks", "simulate", "--json", "--processes", "1"]
        command += ["--first", str(start), "--seeds", str(end - start)]
        environment = {**os.environ, "DATABASE_URL": url}
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("simulate: one of the processes failed")
    figures = [json.loads(text.splitlines()[-1]) for text in outputs]
    steps = sum(part["steps"] for part in figures)
    return {
        "seeds": sum(part["seeds"] for part in figures),
        "violations": sum(part["violations"] for part in figures),
        "steps": steps,
        "steps_per_second": round(steps / (time.perf_counter() - began)),
        "broken": [sentence for part in figures for sentence in part["broken"]][:SHOWN_VIOLATIONS],
    }


def _databases(count: int) -> list[str]:
    """Create ``count`` copies of the empty database of the environment and return their URLs.

    The temporary database server deletes the copies when it ends.
    """
    template_url = os.environ["DATABASE_URL"]
    name = conninfo.conninfo_to_dict(template_url)["dbname"]
    copies = [f"{name}_{number}" for number in range(1, count + 1)]
    with psycopg.connect(
        conninfo.make_conninfo(template_url, dbname="postgres"), autocommit=True
    ) as connection:
        for copy in copies:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                    sql.Identifier(copy), sql.Identifier(str(name))
                )
            )
    return [urlsplit(template_url)._replace(path=f"/{copy}").geturl() for copy in copies]
