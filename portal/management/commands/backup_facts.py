"""Print what a backup records about the database, as JSON."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand

from portal.reads.fleet.backup_facts import backup_facts


class Command(BaseCommand):
    help = "Print the facts with which a backup is verified, and the index of people's volumes, as JSON."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(json.dumps(backup_facts()))
