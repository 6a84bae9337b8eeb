"""Write a recorded snapshot to a file: ./run manage export_snapshot 17 > 17.json

``replay_snapshot`` runs the planner on this file on any machine.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduler.cycle import recording
from scheduler.models import Decision, Recording, Workload

LISTED = 20
BEGINNING = re.compile(r"[0-9a-f]{8}(-[0-9a-f-]{0,27})?")


def _id(text: str) -> str:
    """Return ``text`` in lower case if it is a workload's id or the beginning of an id.

    Raises ArgumentTypeError for other texts.
    """
    if not BEGINNING.fullmatch(text.lower()):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}; allowed: the id of a workload or at least its first 8 characters, "
            "as shown on its page and by gpupool show"
        )
    return text.lower()


class Command(BaseCommand):
    help = "Write a recorded snapshot to the standard output, or list the latest ones."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "number",
            nargs="?",
            type=int,
            help="number of a recording; without it, the latest recordings are listed",
        )
        parser.add_argument(
            "--workload",
            type=_id,
            help="list the recordings with a decision about the workload of this id",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["number"] is None:
            self._list(options["workload"])
            return
        try:
            self.stdout.write(recording.recording_file_text(options["number"]), ending="")
        except recording.RecordingNotFound:
            raise CommandError(
                f"number: {options['number']}; there is no such recording, or it has expired"
            ) from None

    def _list(self, workload: str | None) -> None:
        found = Recording.objects.order_by("-pk")
        if workload is not None:
            meant = list(Workload.objects.filter(public_id__startswith=workload).order_by("pk")[:2])
            if len(meant) != 1:
                raise CommandError(
                    f"workload: {workload}; "
                    f"{'several ids begin with this' if meant else 'there is no such workload'}"
                )
            # apply_plan gives a decision and its recording the same time.
            found = found.filter(at__in=Decision.objects.filter(workload=meant[0]).values("at"))
        for row in reversed(found[:LISTED]):
            at = row.at.isoformat(timespec="milliseconds")
            self.stdout.write(
                f"{row.pk}  {at}  started {row.placed}, preempted {row.evicted}, waiting {row.refused}"
            )
