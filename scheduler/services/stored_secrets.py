"""Encrypt stored secrets again after a change of the keys."""

from __future__ import annotations

from scheduler.models import Workload

ROWS_AT_ONCE = 500


def encrypt_environments_again() -> int:
    """Encrypt the environment of every workload with the first key. Return the number of workloads.

    An environment never changes after the submission, so no lock is needed. Raises DecryptionError.
    """
    count, last = 0, 0
    while True:
        rows = Workload.objects.filter(pk__gt=last).exclude(environment={}).order_by("pk")
        found = list(rows.only("pk", "environment")[:ROWS_AT_ONCE])
        if not found:
            return count
        Workload.objects.bulk_update(found, ["environment"])
        count, last = count + len(found), found[-1].pk
