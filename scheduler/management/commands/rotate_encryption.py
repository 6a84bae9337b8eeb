"""Encrypt the stored secrets again, with the first key of GPUPOOL_ENCRYPTION_KEYS."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduler.models.encrypted_fields import DecryptionError
from scheduler.services.stored_secrets import encrypt_environments_again


class Command(BaseCommand):
    help = "Encrypt the environment variables of workloads again, with the first key. Then remove old keys."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            count = encrypt_environments_again()
        except DecryptionError as error:
            raise CommandError(f"{error}; nothing was changed after the first such row") from None
        self.stdout.write(f"The environments of {count} workloads are encrypted with the first key.")
