"""Run the planner again on a recorded snapshot: ./run manage replay_snapshot FILE

This command needs no database and no clock.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduler.core.model import serialization
from scheduler.core.planner import plan

GZIP = b"\x1f\x8b"


class Command(BaseCommand):
    help = (
        "Plan again on a recorded snapshot and print the plan as JSON. "
        "Exits with status 1 if it differs from the recorded one."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "file", help="a file of export_snapshot, plain or gzipped; - for the standard input"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        recorded = _read(options["file"])
        text = serialization.plan_text(plan(recorded.snapshot, recorded.now))
        self.stdout.write(text)
        found = serialization.sha256_hex(text)
        if found != recorded.plan_sha256:
            raise CommandError(
                f"the plan differs from the recorded one: sha256 {found}, recorded {recorded.plan_sha256}. "
                "The rules, the program or the file have changed since"
            )
        self.stderr.write(f"the plan equals the recorded one, byte for byte: sha256 {found}")


def _read(name: str) -> serialization.RecordedSnapshot:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = (gzip.decompress(raw) if raw.startswith(GZIP) else raw).decode()
        return serialization.read_recording(text)
    except (OSError, EOFError, UnicodeDecodeError, serialization.RecordingFormatError) as error:
        raise CommandError(f"file: {name}; {error}") from None
