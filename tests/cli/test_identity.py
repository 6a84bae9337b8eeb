"""Test the commands about identity providers and rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from allauth.socialaccount.models import SocialAccount

from portal.models import AuditEvent, ClaimRule, DirectorySync, IdentityProvider, User
from portal.sign_in.oidc.providers import settings_of
from tests.cli.conftest import Gpupool
from tests.portal.identity_provider import small_provider
from tests.world import World

SignIn = Callable[[User], str]


def test_an_operator_adds_tests_and_removes_a_provider_and_rules(
    gpupool: Gpupool, sign_in: SignIn, served_world: World, tmp_path: Path
) -> None:
    sign_in(served_world.operator)
    secret = tmp_path / "secret"
    secret.write_text("very secret\n")
    with small_provider() as served:
        options = ("--issuer", served.issuer, "--client-id", "x", "--secret-file", str(secret))
        added = gpupool("identity", "add", "Corp", *options, "--why", "new")
        assert (added.code, added.out) == (0, "corp is added.\n"), added.err
        assert gpupool("identity", "test", "corp").out == "Passed: Corp answers, and its 1 keys are usable.\n"
    assert gpupool("identity", "test", "corp").out.startswith("Failed: Corp does not answer at http://127")
    row = IdentityProvider.objects.get()
    assert settings_of(row).secret == "very secret" and "very secret" not in row.encrypted_secret
    assert "secret" not in json.loads(gpupool("identity", "show", "--json").out)["providers"][0]
    assert gpupool("identity", "set", "corp", "--off", "--scopes", "openid groups").code == 0
    row.refresh_from_db()
    assert (row.active, row.scopes, settings_of(row).secret) == (False, "openid groups", "very secret")
    person = served_world.vision.member
    SocialAccount.objects.create(user=person, provider="corp", uid="1", extra_data={"groups": ["gpu"]})
    rule = ("identity", "add-rule", "corp", "groups", "gpu", "--team", "language", "--lead")
    preview = gpupool(*rule, "--preview").out
    assert "1 would join, 0 would leave, of 1 people" in preview, preview
    assert "vision-1: joins language as lead" in preview and not ClaimRule.objects.exists()
    assert gpupool(*rule, "--why", "x").code == 0
    made = ClaimRule.objects.get()
    assert made.lead and "groups=gpu" in gpupool("identity", "show").out
    assert gpupool("identity", "remove-rule", str(made.pk)).code == 0 and not ClaimRule.objects.exists()
    refused = gpupool("identity", "passwords", "off")
    assert refused.code == 1 and "no operator could sign in" in refused.err
    assert gpupool("identity", "remove", "corp", "--why", "end").code == 0
    assert not IdentityProvider.objects.exists() and not SocialAccount.objects.exists()
    events = AuditEvent.objects.filter(verb__endswith="identity_provider").order_by("pk")
    assert [(event.verb, event.via) for event in events] == [
        ("create_identity_provider", "cli"),
        ("change_identity_provider", "cli"),
        ("remove_identity_provider", "cli"),
    ]
    assert "very secret" not in str(list(events.values()))


def test_people_list_and_disconnect_their_own_identities(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    person = served_world.vision.member
    mine = SocialAccount.objects.create(user=person, provider="corp", uid="1", extra_data={})
    other = SocialAccount.objects.create(user=served_world.stranger, provider="corp", uid="2", extra_data={})
    sign_in(person)
    listed = json.loads(gpupool("identity", "mine", "--json").out)["results"]
    assert [each["subject"] for each in listed] == ["1"]
    assert gpupool("identity", "disconnect", str(other.pk)).code == 4
    assert gpupool("identity", "disconnect", str(mine.pk)).code == 0
    assert list(SocialAccount.objects.values_list("uid", flat=True)) == ["2"]
    refused = gpupool("identity", "show")
    assert refused.code == 1 and "Only operators and auditors see how people sign in." in refused.err


def test_an_operator_adds_changes_and_syncs_a_directory(
    gpupool: Gpupool, sign_in: SignIn, served_world: World, tmp_path: Path
) -> None:
    """Check the commands with a directory that does not answer; `tests/ldap` has one that does."""
    sign_in(served_world.operator)
    secret = tmp_path / "secret"
    secret.write_text("very secret\n")
    options = ("--url", "ldaps://127.0.0.1:1", "--bind-dn", "cn=portal,dc=x", "--user-base", "dc=x")
    added = gpupool("identity", "add-ldap", "Staff", *options, "--secret-file", str(secret))
    assert (added.code, added.out) == (0, "staff is added.\n"), added.err
    assert "ldaps://127.0.0.1:1" in gpupool("identity", "show").out
    changed = gpupool("identity", "set-ldap", "staff", "--max-loss-percent", "5", "--when-gone", "remove")
    assert changed.code == 0, changed.err
    row = IdentityProvider.objects.get()
    assert (row.directory["max_loss_percent"], row.directory["when_gone"]) == (5, "remove")
    assert row.directory["url"] == "ldaps://127.0.0.1:1" and settings_of(row).secret == "very secret"
    refused = gpupool("identity", "set-ldap", "staff", "--url", "ldap://ldap.example.org")
    assert refused.code == 1 and "url is" in refused.err and "allowed: ldaps://" in refused.err
    for command in (("test", "staff", "--person", "ada"), ("sync", "staff", "--preview"), ("sync", "staff")):
        found = gpupool("identity", *command)
        assert found.code == 0 and "Staff" in found.out, found.err
    assert not json.loads(gpupool("identity", "sync", "staff", "--preview", "--json").out)["closes"]
    assert DirectorySync.objects.get().outcome == "failed"
