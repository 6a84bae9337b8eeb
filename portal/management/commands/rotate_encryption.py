"""Encrypt the stored secrets again, with the first key of GPUPOOL_ENCRYPTION_KEYS."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.services.people.identity.providers import encrypt_client_secrets_again
from portal.services.people.notice_channels.channels import encrypt_targets_again
from scheduler.models.encrypted_fields import DecryptionError
from scheduler.services.stored_secrets import encrypt_environments_again


class Command(BaseCommand):
    help = "Encrypt the stored secrets again, with the first key. Then remove old keys."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            workloads, providers = encrypt_environments_again(), encrypt_client_secrets_again()
            channels = encrypt_targets_again()
        except DecryptionError as error:
            raise CommandError(f"{error}; nothing was changed after the first such row") from None
        self.stdout.write(
            f"The environments of {workloads} workloads, the secrets of {providers} identity providers and "
            f"the addresses of {channels} notice channels are encrypted with the first key."
        )
