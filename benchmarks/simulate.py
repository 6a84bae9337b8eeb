"""The control plane and four hosts in virtual time, with everything going wrong: does what is promised still hold?

    ./run bench simulate --seeds 1000
    ./run bench simulate --replay 17        the whole story of one seed

Each seed is one course of two minutes: people ask, cancel, reserve and close hosts, while frames are lost, doubled, late and out of
order, hosts are cut off and restart, agents, shims, engines, the edge and the database are killed, disks fill, and clocks jump.
What is real in it and what is made up: `benchmarks/virtual/`. ``violations`` is in how many ways something was broken that is
promised; ``broken`` gives the first of them with their seeds.
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
SHOWN = 20
TOLD_EVERY = 10  # seeds


def main(argv: list[str]) -> dict[str, Any]:
    """Live through ``--seeds`` courses, from ``--first`` on, in ``--processes`` at once, each with a database of its own; with
    ``--replay`` through one, telling all of it."""
    options = argparse.ArgumentParser(prog="./run bench simulate", description=__doc__)
    options.add_argument("--seeds", type=int, default=1000)
    options.add_argument("--first", type=int, default=1)
    options.add_argument("--replay", type=int)
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = options.parse_args(argv)
    processes = min(given.processes, given.seeds)
    if given.replay is None and processes > 1:
        return _at_once(given.first, given.seeds, processes)

    import logging

    import django

    django.setup()
    logging.disable(logging.ERROR)  # the server says of every fault what it thinks of it
    from benchmarks.simulation.world import run_simulation

    seeds = [given.replay] if given.replay is not None else range(given.first, given.first + given.seeds)
    began, steps, broken = time.perf_counter(), 0, []
    gc.disable()  # a course makes millions of objects, and hardly any ring of them
    for seed in seeds:
        course = run_simulation(seed)
        gc.collect()
        steps += course.steps
        broken += [f"seed {seed}: {sentence}" for sentence in course.violations]
        if given.replay is not None:
            print("\n".join(course.story))
            print(course.digest)
        elif course.violations:
            print(f"seed {seed}: {course.violations[0]}", flush=True)
        elif seed % TOLD_EVERY == 0:
            print(f"up to seed {seed}: {steps} steps, {len(broken)} violations", flush=True)
    return {
        "seeds": len(seeds),
        "violations": len(broken),
        "steps": steps,
        "steps_per_second": round(steps / (time.perf_counter() - began)),
        "broken": broken[:SHOWN],
    }


def _at_once(first: int, seeds: int, processes: int) -> dict[str, Any]:
    """The figures of all processes together."""
    began, running = time.perf_counter(), []
    for number, url in enumerate(_databases(processes)):
        start, end = (first + seeds * each // processes for each in (number, number + 1))
        command = [sys.executable, "-m", "benchmarks", "simulate", "--json", "--processes", "1"]
        command += ["--first", str(start), "--seeds", str(end - start)]
        environment = {**os.environ, "DATABASE_URL": url}
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    told = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("simulate: one of its processes failed")
    figures = [json.loads(text.splitlines()[-1]) for text in told]
    steps = sum(each["steps"] for each in figures)
    return {
        "seeds": sum(each["seeds"] for each in figures),
        "violations": sum(each["violations"] for each in figures),
        "steps": steps,
        "steps_per_second": round(steps / (time.perf_counter() - began)),
        "broken": [sentence for each in figures for sentence in each["broken"]][:SHOWN],
    }


def _databases(count: int) -> list[str]:
    """So many copies of the empty database of the environment, by their addresses. They go with its server."""
    whole = os.environ["DATABASE_URL"]
    name = conninfo.conninfo_to_dict(whole)["dbname"]
    copies = [f"{name}_{number}" for number in range(1, count + 1)]
    with psycopg.connect(conninfo.make_conninfo(whole, dbname="postgres"), autocommit=True) as connection:
        for copy in copies:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                    sql.Identifier(copy), sql.Identifier(str(name))
                )
            )
    return [urlsplit(whole)._replace(path=f"/{copy}").geturl() for copy in copies]
