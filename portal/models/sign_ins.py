"""Define the setup code of a new installation, browser sessions, and the addresses of API tokens."""

from __future__ import annotations

from django.db import models

from portal.models.accounts import ApiToken, User


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


class BrowserSession(models.Model):
    """A session of a person in a browser, for the list on the account page.

    Django's session row decides whether the session is valid. The key is stored there in clear text, too.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="browser_sessions")
    session_key = models.CharField(max_length=40, unique=True)
    generation = models.PositiveIntegerField(help_text="the session has ended if the user's is newer")
    signed_in_at = models.DateTimeField()
    last_used_at = models.DateTimeField()
    address = models.CharField(max_length=45)
    agent = models.CharField(max_length=200, default="", blank=True, help_text="User-Agent header")
    method = models.CharField(max_length=200, default="", blank=True, help_text="steps of the sign-in")
