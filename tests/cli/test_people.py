"""Test the commands with which operators protect accounts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from portal.models import AuditEvent, User
from portal.services.people.api_tokens import create_token, token_in_force
from tests.cli.conftest import Gpupool
from tests.world import World

SignIn = Callable[[User], str]


def test_an_operator_previews_and_protects_an_account(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    person = served_world.vision.member
    _, text = create_token(actor=person, name="laptop", now=served_world.now)
    sign_in(served_world.operator)
    assert "vision-1" in gpupool("person", "list").out
    preview = gpupool("person", "end-sessions", "vision-1", "--preview").out
    for part in ("No work of this person runs or waits.", "laptop (id ", "Nothing is changed."):
        assert part in preview, part
    assert User.objects.get(pk=person.pk).session_generation == 0
    done = gpupool("person", "end-sessions", "vision-1", "--revoke-tokens", "--why", "stolen laptop")
    assert (done.code, done.out) == (0, "The sessions of vision-1 have ended.\n"), done.err
    assert User.objects.get(pk=person.pk).session_generation == 1
    assert token_in_force(text, served_world.now) is None
    event = AuditEvent.objects.get(verb="end_sessions")
    assert (event.via, event.why) == ("cli", "stolen laptop")
    link = json.loads(gpupool("person", "reset-password", "vision-1", "--json").out)["link"]
    assert "/accounts/password/reset/key/" in link
    assert gpupool("person", "close", "vision-1").code == 0
    assert "closed" in gpupool("person", "show", "vision-1").out
    assert gpupool("person", "close", "nobody").code == 4


def test_a_member_protects_no_account(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.vision.member)
    refused = gpupool("person", "end-sessions", "vision-1")
    assert refused.code == 1 and "Only an operator may create or change accounts." in refused.err


def test_an_operator_imports_people_and_gets_their_links_in_a_private_file(
    gpupool: Gpupool, sign_in: SignIn, served_world: World, tmp_path: Path
) -> None:
    sign_in(served_world.operator)
    people, links = tmp_path / "people.csv", tmp_path / "links.csv"
    people.write_bytes("username;email;name\nren;ren@example.org;René\n".encode("latin-1"))
    import_people = ("person", "import", str(people))
    assert "new" in gpupool(*import_people, "--preview").out and not User.objects.filter(username="ren")
    done = gpupool(*import_people, "--links", str(links), "--why", "new year")
    assert done.code == 0 and "http" not in done.out, done.err
    assert User.objects.get(username="ren").get_full_name() == "René"
    assert "ren\tren@example.org\thttp" in links.read_text() and links.stat().st_mode & 0o777 == 0o600
    assert "allowed: a file that does not exist" in gpupool(*import_people, "--links", str(links)).err
    people.write_text("username,email\nbob,nobody\n")
    refused = gpupool(*import_people, "--links", str(tmp_path / "more.csv"))
    assert refused.code == 1 and "email is 'nobody'" in refused.out
    assert not (tmp_path / "more.csv").exists()
