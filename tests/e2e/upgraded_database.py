"""Print as JSON the facts in the database at DATABASE_URL and the result of one planning cycle on it.

``tests/e2e/test_upgrade.py`` runs this module in its own process,
because Django's settings name one database per process.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from django.db.models import Sum  # noqa: E402

from benchmarks.plan_verifier import violations  # noqa: E402
from scheduler.core.planner import plan  # noqa: E402
from scheduler.cycle import core_values, engine, snapshot  # noqa: E402
from scheduler.models import Allocation, BoundUnit, Leader, Quota, Reservation, Run, Workload  # noqa: E402
from telemetry.models import Charge, Rollup, Sample  # noqa: E402


def read_facts() -> dict[str, Any]:
    """Return the facts that an upgrade must keep, by the names used in the test's SQL."""
    return {
        "workloads": Counter(Workload.objects.values_list("state", flat=True)),
        "runs": Counter(Run.objects.values_list("state", flat=True)),
        "units held": Allocation.objects.filter(period__upper_inf=True).count(),
        "reservations": Counter(Reservation.objects.values_list("state", flat=True)),
        "units bound": BoundUnit.objects.count(),
        "guaranteed slots": Quota.objects.aggregate(total=Sum("guaranteed_slots"))["total"],
        "charges": Charge.objects.count(),
        "charged": str(Charge.objects.aggregate(total=Sum("charged"))["total"]),
        "samples": Sample.objects.count(),
        "rollups": Counter(map(str, Rollup.objects.values_list("resolution", flat=True))),
        "covered seconds": round(Rollup.objects.aggregate(total=Sum("covered_seconds"))["total"]),
        "energy": Rollup.objects.aggregate(total=Sum("energy_mj"))["total"],
    }


def main() -> None:
    facts = read_facts()
    leader = Leader.objects.get()
    assert leader.last_cycle_at is not None
    now = leader.last_cycle_at + timedelta(seconds=20)  # the leadership of the old engine has expired
    taken = snapshot.take_snapshot(None, now)
    planned = plan(taken, core_values.epoch_seconds(now))
    applied = engine.run_cycle("an engine after the upgrade", now)
    print(
        json.dumps(
            {
                "facts": facts,
                "answered": len(planned.placements) + len(planned.refusals),
                "violations": violations(taken, planned, core_values.epoch_seconds(now)),
                "led": applied is not None,
                "rejected": [rejection.problem for rejection in applied.rejected] if applied else [],
                "after": read_facts(),
            }
        )
    )


if __name__ == "__main__":
    main()
