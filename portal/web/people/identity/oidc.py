"""Carry out the steps of a sign-in with an OpenID Connect provider, on top of django-allauth.

allauth keeps the state and the code verifier (PKCE) in the session, and signs the person in. This module adds
a nonce, checks the issuer of each answer (RFC 9207), and verifies the signature of each ID token.
"""

from __future__ import annotations

import json
import secrets
from typing import Any
from urllib.parse import quote_plus

from allauth.account.adapter import get_adapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.helpers import render_authentication_error
from allauth.socialaccount.models import SocialApp, SocialLogin
from allauth.socialaccount.providers.oauth2.client import OAuth2Client
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from portal import policy
from portal.redis_state.sign_in_attempts import count_attempt
from portal.services.people.identity.sign_in import without_protocol_claims
from portal.sign_in.attempts import started_sign_ins
from portal.sign_in.client import client_of
from portal.sign_in.oidc.discovery import fetch_discovery, fetch_keys
from portal.sign_in.oidc.id_token import verify_id_token
from portal.sign_in.oidc.providers import OIDC, ProviderSettings, find_provider
from portal.sign_in.oidc.refusals import SignInRefused
from portal.sign_in.oidc.transport import request_json

PROCESSES = ("login", "connect", "test")
TEST_CLAIMS_KEY = "identity_test"  # in the session of the operator
PROVIDER_KIND = "openid_connect"


def app_of(provider: ProviderSettings) -> SocialApp:
    """Return allauth's description of a provider, unsaved. It has no secret, which only tokens need."""
    return SocialApp(
        provider=PROVIDER_KIND,
        provider_id=provider.slug,
        name=provider.name,
        client_id=provider.client_id,
        settings={
            "server_url": provider.issuer,
            "scope": provider.scopes.split(),
            "oauth_pkce_enabled": True,
        },
    )


class PortalOidcProvider(OpenIDConnectProvider):  # type: ignore[misc]
    """A provider whose sign-ins have a nonce. Parameters of the request do not reach the provider."""

    def __init__(self, request: HttpRequest, settings_: ProviderSettings) -> None:
        super().__init__(request, app=app_of(settings_))
        self.portal_settings = settings_

    def get_oauth2_adapter(self, request: HttpRequest) -> PortalOidcAdapter:
        return PortalOidcAdapter(request, self.portal_settings)

    def start(self, request: HttpRequest, process: str, next_url: str | None) -> HttpResponse:
        """Store state, nonce and code verifier in the session, and return the redirect to the provider."""
        nonce = secrets.token_urlsafe(24)
        answer: HttpResponse = self.redirect(
            request,
            process,
            next_url=next_url,
            auth_params={"nonce": nonce},
            scope=self.get_scope(),
            nonce=nonce,
        )
        return answer


class PortalOidcClient(OAuth2Client):  # type: ignore[misc]
    """A client that exchanges a code for tokens, with the certificates that the provider's settings trust."""

    provider: ProviderSettings

    def get_access_token(
        self, code: str, pkce_code_verifier: str | None = None, extra_data: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the answer of the token endpoint. Raises SignInRefused."""
        data = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.callback_url,
            "code_verifier": pkce_code_verifier or "",
        }
        arguments: dict[str, Any] = {}
        secret = self.provider.secret
        if secret and self.basic_auth:
            # RFC 6749, section 2.3.1: both parts are encoded as in a form.
            arguments["auth"] = (quote_plus(self.provider.client_id), quote_plus(secret))
        else:
            data |= {"client_id": self.provider.client_id} | ({"client_secret": secret} if secret else {})
        status, found = request_json(self.provider, "POST", self.access_token_url, data=data, **arguments)
        if status != 200 or not isinstance(found, dict) or not isinstance(found.get("access_token"), str):
            problem = found.get("error") if isinstance(found, dict) else None
            if problem == "invalid_grant":
                raise SignInRefused("code_refused", name=self.provider.name)
            said = ascii(problem)[1:-1][:100] if isinstance(problem, str) else f"status {status}"
            raise SignInRefused("provider_error", name=self.provider.name, problem=said)
        return found


class PortalOidcAdapter(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]
    """An adapter that checks the discovery document and verifies ID tokens with the provider's keys."""

    client_class = PortalOidcClient

    def __init__(self, request: HttpRequest, settings_: ProviderSettings) -> None:
        super().__init__(request, settings_.slug)
        self.portal_settings = settings_
        self.state: dict[str, Any] = {}

    @property
    def openid_config(self) -> dict[str, Any]:
        """Return the checked discovery document. Raises SignInRefused."""
        if not hasattr(self, "_openid_config"):
            self._openid_config = fetch_discovery(self.portal_settings)
        return self._openid_config

    @property
    def basic_auth(self) -> bool:
        """Return True if the portal authenticates by HTTP Basic, which each provider supports by default."""
        return "client_secret_basic" in self.openid_config["token_endpoint_auth_methods_supported"]

    def get_provider(self) -> PortalOidcProvider:
        return PortalOidcProvider(self.request, self.portal_settings)

    def get_client(self, request: HttpRequest, app: SocialApp) -> PortalOidcClient:
        client: PortalOidcClient = super().get_client(request, app)
        client.provider = self.portal_settings
        return client

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        return callback_url(self.portal_settings.slug)

    def complete_login(self, request: HttpRequest, app: SocialApp, token: Any, **kwargs: Any) -> SocialLogin:
        """Verify the ID token, add the claims of the userinfo endpoint, and return the sign-in.

        If an operator tests the provider, keep the claims in the session, change no account, and redirect to
        the page that shows them. Raises SignInRefused.
        """
        claims = verify_id_token(
            kwargs["response"].get("id_token"),
            provider=self.portal_settings,
            keys=fetch_keys(self.portal_settings, self.openid_config),
            nonce=str(self.state.get("nonce") or ""),
        )
        claims = without_protocol_claims({**claims, **self._userinfo(token.token, claims["sub"])})
        if "\\u0000" in json.dumps(claims):  # PostgreSQL cannot store NUL
            raise SignInRefused("token_not_valid", name=self.portal_settings.name)
        if self.state.get("process") == "test":
            if not policy.may(request.user, "identity.change"):
                raise SignInRefused("not_allowed")
            request.session[TEST_CLAIMS_KEY] = {"provider": self.portal_settings.slug, "claims": claims}
            raise ImmediateHttpResponse(redirect("identity-claims", self.portal_settings.slug))
        return self.get_provider().sociallogin_from_response(request, claims)

    def _userinfo(self, access_token: str, subject: str) -> dict[str, Any]:
        """Return the claims of the userinfo endpoint, which must be about the same person."""
        url = self.openid_config.get("userinfo_endpoint")
        if not url:
            return {}
        headers = {"Authorization": f"Bearer {access_token}"}
        status, found = request_json(self.portal_settings, "GET", url, headers=headers)
        if status != 200 or not isinstance(found, dict):
            raise SignInRefused(
                "provider_error", name=self.portal_settings.name, problem=f"userinfo answers {status}"
            )
        if found.get("sub") != subject:
            raise SignInRefused("subject_differs", name=self.portal_settings.name)
        return found


class PortalCallbackView(OAuth2CallbackView):  # type: ignore[misc]
    """The view to which a provider sends the browser back."""

    adapter: PortalOidcAdapter

    def _get_state(
        self, request: HttpRequest, provider: PortalOidcProvider
    ) -> tuple[dict[str, Any] | None, HttpResponse | None]:
        """Return the state of this sign-in, which can be used once. Check which provider sent the answer.

        A provider that names itself in its answers (RFC 9207) must always do so.
        """
        state, response = super()._get_state(request, provider)
        if state is None:
            return state, response
        self.adapter.state = state
        name = provider.portal_settings.name
        try:
            given = request.GET.get("iss")
            names_itself = self.adapter.openid_config.get("authorization_response_iss_parameter_supported")
            if given != provider.portal_settings.issuer and (given is not None or names_itself is True):
                raise SignInRefused("answer_of_another_issuer", name=name)
        except SignInRefused as refusal:
            return None, render_authentication_error(request, provider, exception=refusal)
        return state, None


def callback_url(slug: str) -> str:
    """Return the address to which a provider sends the browser back. The provider has it in its settings."""
    return f"{settings.GPUPOOL_PORTAL_URL}{reverse('openid_connect_callback', args=[slug])}"


@login_not_required
@never_cache
@require_POST
def sign_in_with_provider(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Begin a sign-in. The answer is a page that opens the provider's page.

    A redirect would be refused by browsers that apply ``form-action`` of the content security policy to it.
    """
    process = request.POST.get("process", "login")
    if process not in PROCESSES:
        raise Http404
    settings_ = find_provider(provider_id, kind=OIDC, also_inactive=process == "test")
    if settings_ is None:
        raise Http404
    provider = PortalOidcProvider(request, settings_)
    try:
        if process == "connect" and not request.user.is_authenticated:
            raise SignInRefused("sign_in_first")
        if process == "test" and not policy.may(request.user, "identity.change"):
            raise SignInRefused("not_allowed")
        started = count_attempt([started_sign_ins(client_of(request).network)])
        if started.refused:
            raise SignInRefused("too_many_attempts", seconds=str(started.seconds))
        answer = provider.start(request, process, _next_url(request))
    except SignInRefused as refusal:
        refused: HttpResponse = render_authentication_error(request, provider, exception=refusal)
        return refused
    context = {"address": answer.headers["Location"], "provider": settings_}
    return render(request, "account/to_provider.html", context)


@login_not_required
@never_cache
@require_GET
def provider_callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Finish a sign-in that ``sign_in_with_provider`` began."""
    settings_ = find_provider(provider_id, kind=OIDC, also_inactive=True)
    if settings_ is None:
        raise Http404
    view = PortalCallbackView.adapter_view(PortalOidcAdapter(request, settings_))
    answer: HttpResponse = view(request)
    return answer


def _next_url(request: HttpRequest) -> str | None:
    """Return the page of the portal that the person wanted to open, or None."""
    url = request.POST.get("next", "")
    return url if url and get_adapter(request).is_safe_url(url) else None
