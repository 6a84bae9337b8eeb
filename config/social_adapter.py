"""Adapt django-allauth to the identity providers of the portal."""

from __future__ import annotations

from typing import Any

from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialLogin
from allauth.socialaccount.providers.base.constants import AuthError
from django.contrib import messages
from django.http import HttpRequest
from django.shortcuts import redirect, render
from django.utils import timezone

from portal.models import User
from portal.services.people import sign_ins
from portal.services.people.identity.sign_in import account_of, connect_identity
from portal.sign_in.client import client_of
from portal.sign_in.oidc.providers import OIDC, active_providers, find_provider
from portal.sign_in.oidc.refusals import SignInRefused
from portal.sign_in.own_session import keep_own_session
from portal.web.people.identity.oidc import app_of
from portal.wording.pages import identity_pages


class PortalSocialAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """An adapter that decides with the portal's services who signs in, and records what is refused."""

    def list_apps(
        self, request: HttpRequest, provider: str | None = None, client_id: str | None = None
    ) -> list[SocialApp]:
        """Return the active OpenID Connect providers of the database and of the environment."""
        apps = [app_of(each) for each in active_providers(OIDC)]
        if provider:
            apps = [app for app in apps if provider in (app.provider, app.provider_id)]
        return [app for app in apps if not client_id or app.client_id == client_id]

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        """Return False: ``pre_social_login`` has created the account, if one may be created."""
        return False

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Connect the identity to the signed-in person, or find or create the account of the person.

        Raises SignInRefused.
        """
        account: SocialAccount = sociallogin.account
        provider = find_provider(account.provider)
        if provider is None:
            raise SignInRefused("state_unknown")
        now = timezone.now()
        if sociallogin.state.get("process") == "connect":
            if not isinstance(request.user, User):
                raise SignInRefused("sign_in_first")
            connect_identity(actor=request.user, provider=provider, account=account, now=now)
            request.user.refresh_from_db()
            keep_own_session(request, request.user)
            messages.success(request, identity_pages.CONNECTED.format(name=provider.name))
            raise ImmediateHttpResponse(redirect("own-identities"))
        sociallogin.user = account_of(provider=provider, account=account, now=now)

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: str | None = None,
        exception: Exception | None = None,
        extra_context: dict[str, Any] | None = None,
    ) -> None:
        """Record a sign-in that is refused, and answer with a page that says why."""
        refusal = _refusal(request, provider.name, error, exception)
        person = request.user if isinstance(request.user, User) else None
        sign_ins.record_refused_identity(
            account=person,
            client=client_of(request),
            provider=provider.app.provider_id,
            code=refusal.code,
            text=refusal.message,
            now=timezone.now(),
        )
        page = render(request, "account/sign_in_refused.html", {"message": refusal.message}, status=403)
        raise ImmediateHttpResponse(page)


def _refusal(
    request: HttpRequest, name: str, error: str | None, exception: Exception | None
) -> SignInRefused:
    """Return the refusal with its sentence. Texts of the provider are shortened and made printable."""
    if isinstance(exception, SignInRefused):
        return exception
    given = request.GET.get("error")
    if error == AuthError.CANCELLED:
        return SignInRefused("cancelled", name=name)
    if given and exception is None:
        return SignInRefused("provider_error", name=name, problem=ascii(given)[1:-1][:100])
    if exception is not None:
        return SignInRefused("token_not_valid", name=name)
    return SignInRefused("state_unknown")
