"""Print a new code for the first run of an installation."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from portal.services.people.setup_code import new_setup_code


class Command(BaseCommand):
    help = "Print a new one-time code for the page of the first run. It replaces the earlier code."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the code. Print nothing on standard output if an account exists already."""
        code = new_setup_code(timezone.now())
        if code is None:
            self.stderr.write("An account exists already, so the first run needs no code.")
        else:
            self.stdout.write(code)
