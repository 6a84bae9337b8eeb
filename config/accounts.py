"""How people get an account: they are invited; nobody signs up by themselves."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest


class LocalAccounts(DefaultAccountAdapter):  # type: ignore[misc]
    """Local accounts are made by an operator; the sign-up page is closed."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Always False: an operator makes accounts."""
        return False
