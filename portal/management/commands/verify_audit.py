"""Check that no audit record was removed or changed since it was sealed."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.services.audit_trail import verification
from portal.wording.people.audit_texts import finding_sentence

EXPECTED_SEAL = re.compile(r"(\d{1,18}):([0-9a-f]{64})")


class Command(BaseCommand):
    help = "Check that no audit record was removed or changed since it was sealed. Only reads."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--expect",
            metavar="NUMBER:DIGEST",
            help="also check that the chain has this seal, which was noted outside the database",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        expected = EXPECTED_SEAL.fullmatch(options["expect"] or "")
        if options["expect"] and expected is None:
            raise CommandError(
                f"--expect is {options['expect']!r}; allowed: NUMBER:DIGEST with 64 hexadecimal digits"
            )
        now = timezone.now()
        found = [*verification.find_differences(), *verification.events_without_seal(now)]
        for finding in found:
            self.stdout.write(finding_sentence(asdict(finding)))
        if expected is not None and not verification.has_seal(int(expected[1]), expected[2]):
            raise CommandError(f"The chain has no seal {expected[1]} with this digest: it was made again.")
        if found:
            raise CommandError(f"{len(found)} differences between the audit records and their seals.")
        state = verification.audit_integrity(now, has_receiver=False)
        self.stdout.write(
            f"All sealed audit records are unchanged. The last seal is {state.seal}:{state.digest}; "
            f"{state.unsealed} records are not sealed yet."
        )
