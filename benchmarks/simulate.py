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
import os
import time
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ.setdefault("GPUPOOL_LEASE_SECONDS", "12")

SERVICES = ("postgres",)
SHOWN = 20


def main(argv: list[str]) -> dict[str, Any]:
    """Live through ``--seeds`` courses, from ``--first`` on; with ``--replay`` through one, telling all of it."""
    options = argparse.ArgumentParser(prog="./run bench simulate", description=__doc__)
    options.add_argument("--seeds", type=int, default=1000)
    options.add_argument("--first", type=int, default=1)
    options.add_argument("--replay", type=int)
    given = options.parse_args(argv)

    import logging

    import django

    django.setup()
    logging.disable(logging.ERROR)  # the server says of every fault what it thinks of it
    from benchmarks.virtual.world import live

    seeds = [given.replay] if given.replay is not None else range(given.first, given.first + given.seeds)
    began, steps, broken = time.perf_counter(), 0, []
    gc.disable()  # a course makes millions of objects, and hardly any ring of them
    for seed in seeds:
        course = live(seed)
        gc.collect()
        steps += course.steps
        broken += [f"seed {seed}: {sentence}" for sentence in course.violations]
        if given.replay is not None:
            print("\n".join(course.story))
            print(course.digest)
        elif course.violations:
            print(f"seed {seed}: {course.violations[0]}", flush=True)
    return {
        "seeds": len(seeds),
        "violations": len(broken),
        "steps": steps,
        "steps_per_second": round(steps / (time.perf_counter() - began)),
        "broken": broken[:SHOWN],
    }
