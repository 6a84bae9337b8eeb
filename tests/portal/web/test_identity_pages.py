"""Test the pages on which operators set how people sign in."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, ClaimRule, IdentityProvider
from portal.sign_in.oidc.providers import settings_of
from portal.sign_in.oidc.refusals import SignInRefused
from tests.portal.identity_provider import small_provider
from tests.world import World

pytestmark = pytest.mark.django_db

PROVIDER = {
    "name": "Corp",
    "issuer": "https://id.example.org/realm",
    "client_id": "gpupool",
    "secret": "very secret",
    "scopes": "openid profile email",
    "username_claim": "preferred_username",
    "active": "on",
    "creates_accounts": "on",
}


@pytest.fixture
def operator(world: World) -> Client:
    browser = Client()
    browser.force_login(world.operator)
    return browser


def create(operator: Client, **changes: Any) -> Any:
    return operator.post(reverse("identity-provider-new"), {**PROVIDER, **changes})


def test_a_provider_is_created_changed_and_removed_and_its_secret_is_never_shown(operator: Client) -> None:
    assert create(operator).status_code == 302
    row = IdentityProvider.objects.get()
    assert row.slug == "corp" and "very secret" not in row.encrypted_secret
    address = reverse("identity-provider", args=["corp"])
    page = operator.get(address).content.decode()
    assert "very secret" not in page and "/accounts/oidc/corp/login/callback/" in page
    changed = {**PROVIDER, "secret": "", "name": "Company", "action": "save"}
    changed.pop("active")
    assert operator.post(address, changed).status_code == 302
    row.refresh_from_db()
    assert (row.name, row.active, settings_of(row).secret) == ("Company", False, "very secret")
    assert "Company" in operator.get(reverse("sign-in-settings")).content.decode()
    assert operator.post(address, {"action": "remove"}).status_code == 302
    assert not IdentityProvider.objects.exists()
    assert "very secret" not in str(list(AuditEvent.objects.values()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"issuer": "http://id.example.org"}, "issuer is http://id.example.org; allowed: https://HOST"),
        ({"issuer": "https://id.example.org?x=1"}, "allowed: https://HOST"),
        ({"issuer": "https://user@id.example.org"}, "allowed: https://HOST"),
        ({"scopes": "profile"}, "one of which is openid"),
        ({"ca_certificates": "no certificate"}, "ca_certificates has no PEM certificate"),
        ({"username_claim": "a b"}, "username_claim is"),
    ],
)
def test_an_invalid_provider_is_refused_at_its_field(
    operator: Client, changes: dict[str, str], message: str
) -> None:
    answer = create(operator, **changes)
    assert answer.status_code == 400 and message in answer.content.decode()
    assert not IdentityProvider.objects.exists()


def test_the_test_of_a_connection_names_the_problem(operator: Client) -> None:
    with small_provider() as served:
        create(operator, issuer=served.issuer)
        address = reverse("identity-provider", args=["corp"])
        assert "its 1 keys are usable" in operator.post(address, {"action": "test"}).content.decode()
        served.discovery = {"issuer": "https://other.example"}
        page = operator.post(address, {"action": "test"}).content.decode()
        assert "names itself https://other.example; the settings say" in page
    assert "does not answer at" in operator.post(address, {"action": "test"}).content.decode()


def test_a_secret_cannot_be_read_with_another_key(operator: Client, settings: Any) -> None:
    create(operator)
    settings.GPUPOOL_ENCRYPTION_KEYS = ("another key of this installation",)
    settings.SECRET_KEY = "another key of this installation" * 2
    with pytest.raises(SignInRefused, match="An operator enters the client secret again."):
        _ = settings_of(IdentityProvider.objects.get()).secret


def test_a_client_secret_stays_readable_while_the_key_is_replaced(operator: Client, settings: Any) -> None:
    old, new = "the old key of this installation 1", "the new key of this installation 2"
    settings.GPUPOOL_ENCRYPTION_KEYS = (old,)
    create(operator)
    settings.GPUPOOL_ENCRYPTION_KEYS = (new, old)
    call_command("rotate_encryption")
    settings.GPUPOOL_ENCRYPTION_KEYS = (new,)
    assert settings_of(IdentityProvider.objects.get()).secret == "very secret"
    settings.GPUPOOL_ENCRYPTION_KEYS = (old,)
    with pytest.raises(SignInRefused):
        settings_of(IdentityProvider.objects.get()).secret  # noqa: B018
    with pytest.raises(CommandError, match="client secret of Corp"):
        call_command("rotate_encryption")


def test_a_rule_is_added_and_removed_after_a_preview(world: World, operator: Client) -> None:
    create(operator)
    SocialAccount.objects.create(
        user=world.stranger, provider="corp", uid="1", extra_data={"groups": ["gpu"]}
    )
    rule = {"provider": "corp", "claim": "groups", "value": "gpu", "team": "vision"}
    address = reverse("claim-rules")
    page = operator.post(address, rule).content.decode()
    assert "1 would join, 0 would leave, of 1 people" in page and "joins vision as member" in page
    assert not ClaimRule.objects.exists()
    assert operator.post(address, {**rule, "confirmed": "1"}).status_code == 302
    made = ClaimRule.objects.get()
    remove = reverse("claim-rule-remove", args=[made.pk])
    assert "Remove the rule groups=gpu: member of vision?" in operator.get(remove).content.decode()
    assert ClaimRule.objects.exists()
    assert operator.post(remove).status_code == 302 and not ClaimRule.objects.exists()


def test_auditors_see_the_settings_and_change_nothing(world: World, operator: Client) -> None:
    create(operator)
    auditor = Client()
    auditor.force_login(world.auditor)
    for name, args in (("sign-in-settings", []), ("claim-rules", []), ("identity-provider", ["corp"])):
        page = auditor.get(reverse(name, args=args))
        assert page.status_code == 200 and "New provider" not in page.content.decode(), name
        assert (
            auditor.post(reverse(name, args=args), {"action": "remove", "allowed": "on"}).status_code == 403
        )
    assert IdentityProvider.objects.exists()


def test_a_provider_of_the_environment_signs_people_in_and_is_not_editable(
    operator: Client, settings: Any
) -> None:
    settings.GPUPOOL_OIDC = {
        "issuer": "https://id.example.org",
        "name": "From the environment",
        "client_id": "x",
        "secret": "very secret",
        "scopes": "openid",
    }
    assert "From the environment" in Client().get(reverse("account_login")).content.decode()
    address = reverse("identity-provider", args=["environment"])
    page = operator.get(address).content.decode()
    assert "Environment variables set this provider." in page and "very secret" not in page
    operator.post(address, {**PROVIDER, "action": "save"})
    assert not IdentityProvider.objects.exists()
    assert create(operator, name="environment").status_code == 302
    assert IdentityProvider.objects.get().slug != "environment"


def test_the_certificates_of_a_provider_are_trusted_beside_those_of_the_system(operator: Client) -> None:
    file = ssl.get_default_verify_paths().cafile
    if file is None or not Path(file).exists():
        pytest.skip("this system has no file of certificates")
    first = Path(file).read_text().split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    first = first[first.index("-----BEGIN") :]
    assert create(operator, ca_certificates=first).status_code == 302
    assert IdentityProvider.objects.get().ca_certificates == first.strip()


DIRECTORY = {
    "name": "Staff",
    "url": "ldaps://ldap.example.org",
    "bind_dn": "cn=portal,dc=example",
    "secret": "very secret",
    "user_base": "ou=people,dc=example",
    "user_filter": "(objectClass=person)",
    "username_attribute": "uid",
    "subject_attribute": "entryUUID",
    "email_attribute": "mail",
    "name_attribute": "cn",
    "group_base": "",
    "further_attributes": "",
    "group_kind": "groupOfNames",
    "when_gone": "close",
    "max_loss_percent": "20",
    "active": "on",
    "creates_accounts": "on",
}


def test_a_directory_is_created_changed_and_removed_and_its_secret_is_never_shown(operator: Client) -> None:
    assert operator.get(reverse("directory-new")).status_code == 200
    assert operator.post(reverse("directory-new"), DIRECTORY).status_code == 302
    row = IdentityProvider.objects.get()
    assert (row.slug, row.kind) == ("staff", "ldap") and "very secret" not in row.encrypted_secret
    address = reverse("identity-provider", args=["staff"])
    page = operator.get(address).content.decode()
    assert "very secret" not in page and "ldaps://ldap.example.org" in page and "Last sync" in page
    changed = {**DIRECTORY, "secret": "", "max_loss_percent": "50", "action": "save"}
    assert operator.post(address, changed).status_code == 302
    row.refresh_from_db()
    assert (row.directory["max_loss_percent"], settings_of(row).secret) == (50, "very secret")
    assert "Staff" in Client().get(reverse("account_login")).content.decode()
    assert "directory-new" not in operator.get(reverse("sign-in-settings")).content.decode()
    assert operator.post(address, {"action": "remove"}).status_code == 302
    assert not IdentityProvider.objects.exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"url": "ldap://ldap.example.org"}, "url is &#x27;ldap://ldap.example.org&#x27;; allowed: ldaps://"),
        ({"user_filter": "uid=x"}, "allowed: a filter in parentheses"),
        ({"secret": ""}, "secret is empty; allowed: the password of the service account."),
        ({"max_loss_percent": "0"}, "allowed: a whole number from 1 to 100"),
    ],
)
def test_a_wrong_setting_of_a_directory_is_refused_at_its_field(
    operator: Client, change: dict[str, str], problem: str
) -> None:
    answer = operator.post(reverse("directory-new"), {**DIRECTORY, **change})
    page = answer.content.decode().replace("&quot;", "&#x27;")
    assert answer.status_code == 400 and problem in page, page
    assert not IdentityProvider.objects.exists()


def test_the_address_of_oidc_does_not_serve_a_directory_and_the_other_way_round(operator: Client) -> None:
    create(operator)
    operator.post(reverse("directory-new"), DIRECTORY)
    assert Client().post(reverse("openid_connect_login", args=["staff"])).status_code == 404
    assert Client().get(reverse("openid_connect_callback", args=["staff"])).status_code == 404
    assert Client().get(reverse("directory-login", args=["corp"])).status_code == 404
    assert operator.get(reverse("directory-sync", args=["corp"])).status_code == 404


def test_a_missing_package_of_ldap_is_named(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "portal.sign_in.ldap.backend", None)  # an import of it fails
    operator.post(reverse("directory-new"), DIRECTORY)
    page = operator.post(reverse("identity-provider", args=["staff"]), {"action": "test"}).content.decode()
    assert "installs gpupool[ldap]" in page
    page = operator.get(reverse("directory-sync", args=["staff"])).content.decode()
    assert "Nothing was changed: Staff needs the packages" in page and "Sync now" not in page
    answer = Client().post(
        reverse("directory-login", args=["staff"]), {"username": "ada", "password": "a password"}
    )
    assert answer.status_code == 403 and "installs gpupool[ldap]" in answer.content.decode()


def test_a_file_of_the_environment_sets_several_providers(operator: Client, settings: Any) -> None:
    directory = {"url": "ldaps://ldap.example.org", "bind_dn": "cn=portal,dc=example", "user_base": "dc=x"}
    settings.GPUPOOL_IDENTITY_PROVIDERS = (
        {"kind": "ldap", "slug": "staff", "name": "Staff", "secret": "very secret", "directory": directory},
        {
            "kind": "oidc",
            "slug": "guests",
            "name": "Guests",
            "secret": "very secret",
            "issuer": "https://id.example.org",
            "client_id": "gpupool",
        },
    )
    page = Client().get(reverse("account_login")).content.decode()
    assert reverse("directory-login", args=["staff"]) in page
    assert reverse("openid_connect_login", args=["guests"]) in page
    for slug in ("staff", "guests"):
        page = operator.get(reverse("identity-provider", args=[slug])).content.decode()
        assert "Environment variables set this provider." in page and "very secret" not in page
    answer = create(operator, name="Guests")
    assert answer.status_code == 302 and IdentityProvider.objects.get().slug != "guests"
