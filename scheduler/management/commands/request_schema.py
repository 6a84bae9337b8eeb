"""Print the JSON schema of a request for GPUs: ./run manage request_schema > cli/request_schema.json"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand

from scheduler.request_schema import request_schema


class Command(BaseCommand):
    help = "Print the JSON schema of a request, which the command line ships with."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(json.dumps(request_schema(), indent=2))
