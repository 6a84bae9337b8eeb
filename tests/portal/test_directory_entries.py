"""Test the entries, filters and settings of LDAP directories, without a directory."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from config.environment import InvalidSettingError, read_environment
from portal.sign_in.identity_file import RefusedValueError, read_identity_file
from portal.sign_in.ldap.checks import is_filter, is_safe_directory_url, refused_settings
from portal.sign_in.ldap.entries import escaped, is_disabled, person_of, subject_filter, subject_text
from portal.sign_in.ldap.settings import DirectorySettings

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
DAYS = (NOW.date() - dt.date(1970, 1, 1)).days
FILETIME = int((NOW - dt.datetime(1601, 1, 1, tzinfo=dt.UTC)).total_seconds()) * 10_000_000
DIRECTORY = {"url": "ldaps://ldap.example.org", "bind_dn": "cn=portal,dc=example", "user_base": "dc=example"}
IN_FILE = {"kind": "ldap", "slug": "corp", "name": "Corp", "secret": "very secret", "directory": DIRECTORY}
OIDC_IN_FILE = {
    "kind": "oidc",
    "slug": "id",
    "name": "Id",
    "secret": "very secret",
    "issuer": "https://id.example.org",
    "client_id": "gpupool",
}


@pytest.mark.parametrize(
    ("attributes", "disabled"),
    [
        ({}, False),
        ({"userAccountControl": ["512"]}, False),
        ({"userAccountControl": ["514"]}, True),
        ({"userAccountControl": ["66050"]}, True),
        ({"shadowExpire": ["-1"]}, False),
        ({"shadowExpire": [str(DAYS)]}, True),
        ({"shadowExpire": [str(DAYS + 1)]}, False),
        ({"accountExpires": ["0"]}, False),
        ({"accountExpires": [str(2**63 - 1)]}, False),
        ({"accountExpires": [str(FILETIME)]}, True),
        ({"accountExpires": [str(FILETIME + 1)]}, False),
        ({"userAccountControl": ["text"], "shadowExpire": []}, False),
    ],
)
def test_an_entry_is_disabled_by_active_directory_or_by_its_end(
    attributes: dict[str, Any], disabled: bool
) -> None:
    assert is_disabled(attributes, NOW) is disabled


def test_the_claims_of_an_entry_have_its_groups_and_the_chosen_attributes_only() -> None:
    settings = DirectorySettings(further_attributes="department employeeType")
    attributes = {
        "uid": ["ada"],
        "entryUUID": ["7f3c"],
        "mail": ["ada@example.org", "second@example.org"],
        "cn": [b"\xff"],
        "department": ["research", "nul\0"],
    }
    found = person_of("uid=ada", attributes, [("cn=b", "b"), ("cn=a", "a"), ("cn=x", "")], settings, NOW)
    assert (found.subject, found.disabled) == ("7f3c", False)
    assert found.claims == {
        "sub": "7f3c",
        "dn": "uid=ada",
        "preferred_username": "ada",
        "email": "ada@example.org",
        "name": "",
        "groups": ["a", "b"],
        "group_dns": ["cn=a", "cn=b", "cn=x"],
        "department": ["research"],
        "employeeType": [],
    }


@pytest.mark.parametrize("data", [bytes(range(16)), b"0123456789abcdef", bytes(16)])
def test_a_binary_id_is_found_again_also_if_the_library_returned_it_as_a_text(data: bytes) -> None:
    try:
        given: Any = data.decode()
    except UnicodeDecodeError:
        given = data
    subject = subject_text("objectGUID", given)
    assert subject == subject_text("objectguid", data)
    assert (
        subject_filter("objectGUID", subject) == f"(objectGUID={''.join(f'{chr(92)}{b:02x}' for b in data)})"
    )


def test_characters_of_filters_are_escaped() -> None:
    assert escaped("a*(b)\\\0é") == "a\\2a\\28b\\29\\5c\\00é"
    assert subject_filter("entryUUID", "*)(uid=*") == "(entryUUID=\\2a\\29\\28uid=\\2a)"
    assert subject_filter("objectGUID", "no uuid") == "(objectGUID=)"


@pytest.mark.parametrize(
    ("url", "start_tls", "safe"),
    [
        ("ldaps://ldap.example.org", False, True),
        ("ldaps://ldap.example.org:3269", False, True),
        ("ldaps://ldap.example.org", True, False),
        ("ldap://ldap.example.org", True, True),
        ("ldap://ldap.example.org", False, False),
        ("ldap://127.0.0.1:389", False, True),
        ("ldap://localhost.example.org", False, False),
        ("ldap://127.0.0.1 ldap://other", False, False),
        ("ldap://127.0.0.1,ldap://other", False, False),
        ("ldaps://ldap.example.org/dc=example", False, False),
        ("ldaps://user@ldap.example.org", False, False),
        ("ldaps://:636", False, False),
        ("ldaps://[::1", False, False),
        ("ldapi://socket", False, False),
        ("https://ldap.example.org", False, False),
    ],
)
def test_plain_ldap_is_allowed_for_this_machine_only(url: str, start_tls: bool, safe: bool) -> None:
    assert is_safe_directory_url(url, start_tls=start_tls) is safe


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("(a=b)", True),
        ("(&(a=b)(!(c=d)))", True),
        ("(a=b)(c=d)", False),
        ("a=b", False),
        ("(a=b", False),
        ("", False),
    ],
)
def test_a_filter_is_one_whole_filter(text: str, valid: bool) -> None:
    assert is_filter(text) is valid


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "ldap://ldap.example.org"),
        ("bind_dn", "portal"),
        ("user_base", ""),
        ("user_filter", "(a=b)(c=d)"),
        ("username_attribute", "uid)(x"),
        ("further_attributes", "a b)"),
        ("group_base", "groups"),
        ("group_kind", "other"),
        ("when_gone", "ask"),
        ("max_loss_percent", 0),
        ("max_loss_percent", True),
        ("start_tls", "yes"),
        ("password", "x"),
    ],
)
def test_a_wrong_setting_of_a_directory_is_refused_with_what_is_allowed(name: str, value: Any) -> None:
    assert list(refused_settings(DIRECTORY)) == []
    [(field, given, allowed)] = refused_settings({**DIRECTORY, name: value})
    assert (field, given) == (name, value) and allowed


def written(folder: Path, content: Any) -> Path:
    path = folder / "providers.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_file_sets_providers_of_both_kinds(tmp_path: Path) -> None:
    found = read_identity_file(written(tmp_path, [IN_FILE, OIDC_IN_FILE]))
    assert [each["slug"] for each in found] == ["corp", "id"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("no json", "the file is"),
        ([], "the file is"),
        ({"kind": "ldap"}, "the file is"),
        (["text"], "provider 1 is 'text'; allowed: an object"),
        ([{**IN_FILE, "kind": "saml"}], "provider 1: kind is 'saml'; allowed: oidc or ldap"),
        ([{**IN_FILE, "slug": "environment"}], "provider 1: slug is 'environment'"),
        ([IN_FILE, {**OIDC_IN_FILE, "slug": "corp"}], "provider 2: slug is 'corp'; allowed: a slug that no"),
        ([{**IN_FILE, "secret": ""}], "provider 1: secret is ''"),
        ([{**IN_FILE, "secret": 4711}], "provider 1: secret is 'hidden'"),
        ([{**IN_FILE, "issuer": "https://x"}], "provider 1: field 'issuer' is 'https://x'"),
        ([{**OIDC_IN_FILE, "issuer": "http://id.example.org"}], "provider 1: issuer is"),
        ([{**OIDC_IN_FILE, "scopes": "profile"}], "provider 1: scopes is 'profile'"),
        (
            [{**IN_FILE, "directory": {**DIRECTORY, "when_gone": "ask"}}],
            "provider 1: directory.when_gone is 'ask'; allowed: close or remove",
        ),
    ],
)
def test_a_file_with_a_mistake_names_provider_field_and_value(
    tmp_path: Path, content: Any, problem: str
) -> None:
    with pytest.raises(RefusedValueError) as refusal:
        read_identity_file(written(tmp_path, content))
    assert str(refusal.value).startswith(problem), str(refusal.value)


def test_a_process_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    path = written(tmp_path, [{**IN_FILE, "kind": "saml"}])
    variables = {
        "GPUPOOL_ENVIRONMENT": "test",
        "GPUPOOL_SECRET_KEY": "abcdefghij" * 6,
        "DATABASE_URL": "postgresql://x@127.0.0.1/x",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "GPUPOOL_PORTAL_URL": "http://127.0.0.1:8000",
        "GPUPOOL_EDGE_URL": "http://127.0.0.1:8001",
        "GPUPOOL_STATE": str(tmp_path),
        "GPUPOOL_ENCRYPTION_KEYS": "abcdefghij" * 4,
        "GPUPOOL_IDENTITY_PROVIDERS": str(path),
    }
    with pytest.raises(InvalidSettingError) as refusal:
        read_environment(variables)
    assert "provider 1: kind = 'saml'" in str(refusal.value) and "allowed: oidc or ldap" in str(refusal.value)
