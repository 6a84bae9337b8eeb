"""Repair the database after the restore of a backup, before the services start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from portal.services.fleet import after_restore
from portal.services.people.restored_access import RevokedAccess, present_access
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected

NEXT_STEPS = """New runs get generations from {generation} on, above all that hosts saw since the backup.
{hosts} hosts may connect with a restarted agent; the credentials of {credentials} hosts are valid for a day.
{reporting} hosts get no new work until they report, and keep their work if they report within their lease.
"""
FURTHER_STEPS = """
Start the services now. See docs/operations.md, "Backup and restore", for the next steps. In short:
- Work submitted since the restored time is unknown to the portal; hosts stop it.
- Work that ended since then: its host reports the end again if it can; otherwise the work runs again.
- Hosts that joined since then need a new join token.
"""
REVOKED = {
    "tokens": "API tokens are revoked",
    "accounts": "accounts are closed",
    "passwords": "accounts have the password that was set later",
    "hosts": "hosts have no credential and need a new join token",
}


class Command(BaseCommand):
    help = "Run once after a restore of the database, so that hosts can work with the older rows again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--print-access",
            action="store_true",
            help="change nothing; print as JSON which tokens, accounts and hosts have no access",
        )
        parser.add_argument("--access", help="file with the output of --print-access of a newer state")
        parser.add_argument(
            "--keep-tokens",
            action="store_true",
            help="keep API tokens and sessions: the log was recovered to its end",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["print_access"]:
            self.stdout.write(json.dumps(present_access()))
            return
        access = json.loads(Path(options["access"]).read_text()) if options["access"] else None
        try:
            done, revoked = after_restore.after_restore(
                now=timezone.now(), access=access, keeps_tokens=options["keep_tokens"]
            )
        except OperationRejected as refusal:
            raise CommandError(refusal_sentence(refusal)) from None
        self.stdout.write(
            NEXT_STEPS.format(
                generation=done.generation + 1,
                hosts=done.hosts,
                credentials=done.credentials,
                reporting=done.reporting,
            )
        )
        self._print_revoked(revoked)
        self.stdout.write(FURTHER_STEPS)

    def _print_revoked(self, revoked: RevokedAccess) -> None:
        for name, text in REVOKED.items():
            found = getattr(revoked, name)
            if found:
                self.stdout.write(f"{len(found)} {text}:")
                for each in found:
                    self.stdout.write(f"  {each}")
