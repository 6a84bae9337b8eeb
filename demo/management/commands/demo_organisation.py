"""Create the demo organisation once (``manage.py demo_organisation --out FILE``)."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from demo import organisation


class Command(BaseCommand):
    help = "Make the demo organisation (once) and write its sign-ins and agents as JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--out", required=True, type=Path, help="file to write, readable by its owner alone"
        )
        parser.add_argument(
            "--this-machine",
            default="",
            help="models of this machine's real GPUs, one entry per GPU, separated by commas",
        )
        parser.add_argument("--no-history", action="store_true", help="do not load a simulated past")

    def handle(self, *args: Any, **options: Any) -> None:
        here = [model for model in options["this_machine"].split(",") if model]
        made = organisation.create_organisation(timezone.now(), here, with_history=not options["no_history"])
        out: Path = options["out"]
        out.touch(mode=0o600)
        out.write_text(json.dumps(made, indent=2))
