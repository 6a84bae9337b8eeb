"""Repair the rows after a restore from a backup, before the services start."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from portal.services.fleet import after_restore
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected

SAID = """Work starts from claim {generation} on: above all that hosts have seen since the backup.
{hosts} hosts are known anew at their next word; the credentials of {credentials} are good for another day.

Start the services now. What follows by itself, and what does not: docs/operations.md, "Backup and restore".
In short:
- work that was submitted since the backup is not known any more; hosts stop it.
- work that ran at the backup and has ended since: its host reports its end again if it still can; otherwise
  the work runs again.
- what was revoked or closed since (hosts, API tokens, accounts) is good again: revoke it again now.
- hosts that joined since the backup need a new join token.
"""


class Command(BaseCommand):
    help = "Once after a restore of the database: let hosts that have gone on since work with it again."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            done = after_restore.after_restore(now=timezone.now())
        except OperationRejected as refusal:
            raise CommandError(refusal_sentence(refusal)) from None
        self.stdout.write(
            SAID.format(generation=done.generation + 1, hosts=done.hosts, credentials=done.credentials)
        )
