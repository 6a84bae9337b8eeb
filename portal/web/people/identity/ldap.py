"""Render the page on which people sign in with a user name and a password of an LDAP directory."""

from __future__ import annotations

from allauth.account.adapter import get_adapter
from allauth.account.internal.flows.login import record_authentication
from allauth.account.utils import perform_login
from allauth.socialaccount.models import SocialAccount
from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from portal.models import User
from portal.redis_state.sign_in_attempts import (
    AttemptCounter,
    CountedAttempt,
    count_attempt,
    forget_attempt,
    take_back_attempt,
)
from portal.services.people import sign_ins
from portal.services.people.identity.directory_sign_in import PASSWORD_WRONG, identity_in_directory
from portal.services.people.identity.sign_in import account_of, connect_identity
from portal.sign_in.attempts import accounts_at_provider, counters_of_attempt
from portal.sign_in.client import client_of
from portal.sign_in.oidc.providers import LDAP, ProviderSettings, find_provider
from portal.sign_in.oidc.refusals import SignInRefused
from portal.sign_in.own_session import keep_own_session
from portal.wording.pages import identity_pages, people_pages


class DirectoryPasswordForm(forms.Form):
    username = forms.CharField(
        max_length=150,
        label=identity_pages.DIRECTORY_USER_NAME,
        widget=forms.TextInput(attrs={"autocomplete": "username", "autofocus": True}),
    )
    password = forms.CharField(
        max_length=1000,
        strip=False,
        label=identity_pages.DIRECTORY_PASSWORD,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )


@login_not_required
@never_cache
@sensitive_post_parameters("password")
def sign_in_with_directory(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Show the form. On POST, sign the person in, or connect the identity to the account of the person.

    A second factor that the person has set up in the portal is asked for after the password.
    """
    provider = find_provider(provider_id, kind=LDAP)
    if provider is None:
        raise Http404
    form = DirectoryPasswordForm(request.POST or None)
    status = 400 if form.errors else 200
    if request.method == "POST" and form.is_valid():
        try:
            return _DirectorySignIn(request, provider, **form.cleaned_data).answer()
        except _NotAccepted as problem:
            form.add_error(None, str(problem))
            status = problem.status
    context = {"form": form, "provider": provider, "next": _next_url(request)}
    return render(request, "account/directory_login.html", context, status=status)


class _NotAccepted(Exception):
    """A user name and a password that are not accepted, or come too early. The form shows the sentence."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class _DirectorySignIn:
    """One attempt to sign in, which is counted like one with a password of the portal."""

    def __init__(
        self, request: HttpRequest, provider: ProviderSettings, username: str, password: str
    ) -> None:
        self._request, self._provider = request, provider
        self._username, self._password = username, password
        self._now, self._client = timezone.now(), client_of(request)
        self._accounts = accounts_at_provider(provider.slug, username)
        self._counters: list[AttemptCounter] = counters_of_attempt(
            request, f"{provider.slug}:{username}", self._accounts
        )

    def answer(self) -> HttpResponse:
        """Sign the person in, and return the answer. Raises _NotAccepted."""
        attempt = count_attempt(self._counters)
        if attempt.refused:
            sign_ins.record_early_attempt(
                accounts=self._accounts, client=self._client, seconds=attempt.seconds
            )
            raise _NotAccepted(people_pages.too_many_passwords(attempt.seconds), 429)
        try:
            account = self._identity(attempt)
            if self._request.POST.get("process") == "connect":
                return self._connect(account)
            user = account_of(provider=self._provider, account=account, now=self._now)
        except SignInRefused as refusal:
            return self._refused(refusal)
        adapter = get_adapter(self._request)
        if not user.is_active:
            closed: HttpResponse = adapter.respond_user_inactive(self._request, user)
            return closed
        record_authentication(
            self._request, user, "socialaccount", provider=self._provider.slug, uid=account.uid
        )
        answer: HttpResponse = perform_login(
            self._request, user, email_verification="none", redirect_url=_next_url(self._request)
        )
        return answer

    def _identity(self, attempt: CountedAttempt) -> SocialAccount:
        """Return the identity. Raises SignInRefused, and _NotAccepted for a wrong password."""
        try:
            account = identity_in_directory(
                provider=self._provider, username=self._username, password=self._password, now=self._now
            )
        except SignInRefused as refusal:
            if refusal.code != PASSWORD_WRONG:
                take_back_attempt(self._counters)
                raise
            sign_ins.record_failed_sign_in(
                accounts=self._accounts,
                client=self._client,
                method=self._provider.slug,
                now=self._now,
                delay=attempt.seconds,
            )
            raise _NotAccepted(refusal.message, 400) from None
        forget_attempt(self._counters)
        return account

    def _connect(self, account: SocialAccount) -> HttpResponse:
        """Connect the identity to the account of the signed-in person. Raises SignInRefused."""
        user = self._request.user
        if not isinstance(user, User):
            raise SignInRefused("sign_in_first")
        connect_identity(actor=user, provider=self._provider, account=account, now=self._now)
        user.refresh_from_db()
        keep_own_session(self._request, user)
        messages.success(self._request, identity_pages.CONNECTED.format(name=self._provider.name))
        return redirect("own-identities")

    def _refused(self, refusal: SignInRefused) -> HttpResponse:
        """Record a sign-in that is refused, and answer with a page that says why."""
        person = self._request.user if isinstance(self._request.user, User) else None
        sign_ins.record_refused_identity(
            account=person,
            client=self._client,
            provider=self._provider.slug,
            code=refusal.code,
            text=refusal.message,
            now=self._now,
        )
        page = "account/sign_in_refused.html"
        return render(self._request, page, {"message": refusal.message}, status=403)


def _next_url(request: HttpRequest) -> str | None:
    """Return the page of the portal that the person wanted to open, or None."""
    url = request.POST.get("next") or request.GET.get("next") or ""
    return url if url and get_adapter(request).is_safe_url(url) else None
