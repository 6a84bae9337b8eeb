"""How people get an account: they are invited; nobody signs up by themselves."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter
from django.http import Http404, HttpRequest, HttpResponse

from portal.sign_out import session_ended


class LocalAccounts(DefaultAccountAdapter):  # type: ignore[misc]
    """Local accounts are made by an operator; the sign-up page is closed."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Always False: an operator makes accounts."""
        return False

    def logout(self, request: HttpRequest) -> None:
        """Ends the portal session, and at once the notebooks and live pages that were opened from it."""
        key = request.session.session_key
        super().logout(request)
        if key:
            session_ended(key)


def emails_are_an_operators(request: HttpRequest) -> HttpResponse:
    """In the place of the page on which people would give themselves addresses, also those of others, without a record of it."""
    raise Http404("An operator changes e-mail addresses.")
