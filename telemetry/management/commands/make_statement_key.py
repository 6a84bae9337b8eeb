"""Create the key that signs closed months: ./run manage make_statement_key"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from telemetry.money.signing.statement_key import StatementKeyError, make_key


class Command(BaseCommand):
    help = "Create the private key that signs closed months, in a new file that only its owner may read."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--file", help="absolute path of the new file; default: GPUPOOL_STATEMENT_KEY")

    def handle(self, *args: Any, **options: Any) -> None:
        file = options["file"] or settings.GPUPOOL_STATEMENT_KEY
        if not file or not Path(file).is_absolute():
            raise CommandError(f"file: {file!r}; allowed: an absolute path, here or in GPUPOOL_STATEMENT_KEY")
        try:
            fingerprint = make_key(Path(file))
        except StatementKeyError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{file}: new Ed25519 key, fingerprint {fingerprint}")
