"""Define the forms of signing in and of a new own password."""

from __future__ import annotations

from typing import Any

from allauth.account.forms import ChangePasswordForm, LoginForm, ResetPasswordForm, ResetPasswordKeyForm
from allauth.core import context
from allauth.mfa.base.forms import AuthenticateForm, ReauthenticateForm
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.forms import GenerateRecoveryCodesForm
from allauth.mfa.totp.forms import ActivateTOTPForm, DeactivateTOTPForm
from allauth.mfa.webauthn.forms import AddWebAuthnForm, LoginWebAuthnForm
from django import forms
from django.utils import timezone

from portal.models import User
from portal.redis_state.sign_in_attempts import count_attempt, forget_attempt, use_code_once
from portal.services.people import sign_ins
from portal.services.people.account_effects import AccountEffect, preview_account_change
from portal.services.people.identity.sign_in import local_sign_in_allowed
from portal.sign_in.attempts import second_factor_counter
from portal.sign_in.client import client_of
from portal.sign_in.oidc.providers import ProviderSettings, active_providers
from portal.wording.pages import identity_pages, people_pages
from portal.wording.people import account_texts


class SignInForm(LoginForm):  # type: ignore[misc]
    """A sign-in form with the portal's label for the user name, and without placeholders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = people_pages.USER_NAME_LABEL
        for field in self.fields.values():
            field.widget.attrs.pop("placeholder", None)  # the placeholder repeats the label

    @property
    def providers(self) -> list[ProviderSettings]:
        """Return the identity providers, each of which has a button on the page."""
        return active_providers()

    @property
    def passwords_allowed(self) -> bool:
        """Return True if the page shows the fields for a password."""
        return local_sign_in_allowed()


class RequestPasswordLinkForm(ResetPasswordForm):  # type: ignore[misc]
    """A form that sends a link for a new password by mail, unless passwords are turned off."""

    def clean(self) -> dict[str, Any]:
        """Raise ValidationError if passwords are turned off."""
        _reject_if_passwords_are_off()
        return dict(super().clean() or self.cleaned_data)


def _reject_if_passwords_are_off() -> None:
    if not local_sign_in_allowed():
        raise forms.ValidationError(identity_pages.LOCAL_SIGN_IN_OFF, code="local_sign_in_off")


class OwnAccountEffect:
    """A part of a form: it shows the effect of a change of the person's own account."""

    user: User

    @property
    def effect(self) -> AccountEffect:
        """Return the effect, which the page shows before the change. It is that of ended sessions."""
        now = timezone.now()
        return preview_account_change(actor=self.user, user=self.user, verb="end_sessions", now=now)

    @property
    def effect_text(self) -> str:
        return account_texts.OWN_CHANGE_EFFECT


class ChangeOwnPasswordForm(OwnAccountEffect, ChangePasswordForm):  # type: ignore[misc]
    """A form for a new own password that offers to revoke the API tokens. The adapter reads the field."""

    revoke_tokens = forms.BooleanField(required=False, label=people_pages.REVOKE_OWN_TOKENS)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, label in people_pages.PASSWORD_LABELS.items():
            self.fields[name].label = label
            self.fields[name].widget.attrs.pop("placeholder", None)  # the placeholder repeats the label
        self.fields["password1"].help_text = people_pages.PASSWORD_HELP


class SetPasswordByLinkForm(ResetPasswordKeyForm):  # type: ignore[misc]
    """A form for a password that is set with a one-time link. It offers to revoke the API tokens, too."""

    revoke_tokens = forms.BooleanField(required=False, label=people_pages.REVOKE_OWN_TOKENS)

    def clean(self) -> dict[str, Any]:
        """Raise ValidationError if passwords are turned off."""
        _reject_if_passwords_are_off()
        return dict(super().clean() or self.cleaned_data)


class TurnOnSecondFactorForm(OwnAccountEffect, ActivateTOTPForm):  # type: ignore[misc]
    """A form that turns on the second factor, and shows the effect."""


class TurnOffSecondFactorForm(OwnAccountEffect, DeactivateTOTPForm):  # type: ignore[misc]
    """A form that turns off the second factor, and shows the effect."""

    @property
    def user(self) -> User:  # type: ignore[override]
        found: User = self.authenticator.user
        return found


class NewRecoveryCodesForm(OwnAccountEffect, GenerateRecoveryCodesForm):  # type: ignore[misc]
    """A form that makes new recovery codes, and shows the effect."""


class NewPasskeyForm(OwnAccountEffect, AddWebAuthnForm):  # type: ignore[misc]
    """A form that adds a passkey, and shows the effect."""

    name = forms.CharField(max_length=80, required=False, label=people_pages.PASSKEY_NAME_LABEL)
    passwordless = forms.BooleanField(
        required=False,
        initial=True,
        label=people_pages.PASSKEY_ALONE_LABEL,
        help_text=people_pages.PASSKEY_ALONE_HELP,
    )


class LimitedCodeForm(forms.Form):
    """The part of a form with a code that delays further codes after wrong ones, and takes each code once."""

    user: User

    def clean_code(self) -> str:
        """Return the code if it is right and was not used before. Otherwise raise ValidationError.

        A wrong code is recorded. During a delay no code is checked, and the attempt is in the log only.
        """
        client, counters = client_of(context.request), [second_factor_counter(self.user.pk)]
        attempt = count_attempt(counters)
        if attempt.refused:
            sign_ins.record_early_attempt(accounts=[self.user], client=client, seconds=attempt.seconds)
            text = people_pages.TOO_MANY_CODES.format(seconds=attempt.seconds)
            raise forms.ValidationError(text, code="too_many_codes")
        try:
            code: str = super().clean_code()  # type: ignore[misc]
            if not use_code_once(self.user.pk, code):
                raise forms.ValidationError(people_pages.CODE_WRONG, code="used_code")
        except forms.ValidationError:
            sign_ins.record_failed_sign_in(
                accounts=[self.user],
                client=client,
                method="second factor",
                now=timezone.now(),
                delay=attempt.seconds,
            )
            raise
        forget_attempt(counters)
        return code


class SecondFactorForm(LimitedCodeForm, AuthenticateForm):  # type: ignore[misc]
    """A form for the code of the second factor at a sign-in."""


class ConfirmSecondFactorForm(LimitedCodeForm, ReauthenticateForm):  # type: ignore[misc]
    """A form for a code that proves the identity of a person who is signed in."""


class PasskeySignInForm(LoginWebAuthnForm):  # type: ignore[misc]
    """A form for a sign-in with a passkey alone. It is refused while local accounts are off."""

    def clean_credential(self) -> Authenticator:
        """Return the passkey if it is right. Otherwise raise ValidationError."""
        if not local_sign_in_allowed():
            raise forms.ValidationError(people_pages.PASSKEYS_OFF, code="local_sign_in_off")
        return super().clean_credential()
