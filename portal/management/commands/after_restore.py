"""Repair the database after the restore of a backup, before the services start."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from portal.services.fleet import after_restore
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected

NEXT_STEPS = """New runs get generations from {generation} on, above all that hosts saw since the backup.
{hosts} hosts may connect with a restarted agent; the credentials of {credentials} hosts are valid for a day.

Start the services now. See docs/operations.md, "Backup and restore", for the next steps. In short:
- Work submitted since the backup is unknown to the portal; hosts stop it.
- Work that ended since the backup: its host reports the end again if it can; otherwise the work runs again.
- Hosts, API tokens and accounts revoked or closed since the backup are valid again: revoke them again.
- Hosts that joined since the backup need a new join token.
"""


class Command(BaseCommand):
    help = "Run once after a restore of the database, so that hosts can work with the older rows again."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            done = after_restore.after_restore(now=timezone.now())
        except OperationRejected as refusal:
            raise CommandError(refusal_sentence(refusal)) from None
        self.stdout.write(
            NEXT_STEPS.format(generation=done.generation + 1, hosts=done.hosts, credentials=done.credentials)
        )
