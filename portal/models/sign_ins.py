"""Define the setup code of a new installation, and the addresses from which API tokens were used."""

from __future__ import annotations

from django.db import models

from portal.models.accounts import ApiToken


class SetupCode(models.Model):
    """The one-time code that the first run demands. The table has at most one row.

    Only the hash of the code is stored.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    code_hash = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="there_is_one_setup_code")]


class TokenAddress(models.Model):
    """A network address from which an API token was used. The first use from an address is audited."""

    token = models.ForeignKey(ApiToken, on_delete=models.CASCADE, related_name="addresses")
    address = models.CharField(
        max_length=45, help_text="IPv4 address, or the first 64 bits of an IPv6 address"
    )
    first_used_at = models.DateTimeField()
    last_used_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["token", "address"], name="one_row_per_token_and_address")
        ]
        indexes = [models.Index(fields=["last_used_at"])]
