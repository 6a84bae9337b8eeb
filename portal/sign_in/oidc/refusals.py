"""Define the error of a sign-in with an identity provider that is refused."""

from __future__ import annotations

from allauth.socialaccount.providers.base import ProviderException

from portal.wording.pages.identity_pages import REFUSED_SIGN_INS


class SignInRefused(ProviderException):  # type: ignore[misc]
    """A sign-in that is refused. ``message`` is the sentence for the person, ``code`` is for the audit."""

    def __init__(self, code: str, **numbers: str) -> None:
        self.code = code
        self.numbers = numbers
        self.message = REFUSED_SIGN_INS[code].format(**numbers)
        super().__init__(self.message)
