"""Test work that runs as the Unix user of its owner, with a shared home, on an agent that is root."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.isolation.launchers import PlainLauncher, SandboxRequest
from agent.isolation.person_users import DEFAULT_PERSON_IDS, PersonUserError, PersonUsers, open_person_users
from agent.isolation.team_users import UidRange
from agent.protocol import PersonWanted
from agent.shim import workload_entry
from tests.agent.conftest import MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.agent.test_isolation import output

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run work as another user"),
]
ADA, BOB, STAFF, PROJECT = 4_101, 4_102, 4_200, 4_201


@pytest.fixture
def homes() -> Iterator[Path]:
    """Create a folder of shared homes outside of pytest's folders, which other users can't enter."""
    folder = Path("/tmp") / f"gpupool-people-{os.getpid()}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    for name, uid in (("ada", ADA), ("bob", BOB)):
        home = folder / name
        home.mkdir(mode=0o700)
        os.chown(home, uid, STAFF)
        (home / "secret").write_text(f"the secret of {name}\n")
        os.chown(home / "secret", uid, STAFF)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def person(homes: Path, name: str = "ada", uid: int = ADA, **fields: Any) -> PersonWanted:
    return PersonWanted(
        **{"uid": uid, "gid": STAFF, "groups": [PROJECT], "name": name, "home": str(homes / name), **fields}
    )


# With a real agent


async def test_a_file_that_a_job_writes_in_the_shared_home_belongs_to_its_owner(
    edge: FakeEdge, make_agent: MakeAgent, homes: Path
) -> None:
    agent = await make_agent("--person-homes", str(homes), launcher="bubblewrap")
    assert edge.observed[-1].inventory.person_users
    command = "echo 1 > ~/made; echo 1 > $GPUPOOL_CHECKPOINT_DIR/f; echo $HOME; id -u; id -g"
    found = await output(edge, command, person=person(homes), owner="ada.lovelace")
    assert found.split() == [str(homes / "ada"), str(ADA), str(STAFF)]
    for path in (homes / "ada" / "made", agent.state / "homes" / ".checkpoints" / "workload-1" / "f"):
        assert (path.stat().st_uid, path.stat().st_gid) == (ADA, STAFF)
    assert not (agent.state / "homes" / "ada.lovelace").exists()


async def test_the_closed_home_of_another_person_cannot_be_read(
    edge: FakeEdge, make_agent: MakeAgent, homes: Path
) -> None:
    """Expose all homes to the sandbox, so that only the owner and the mode of the home protect it."""
    await make_agent("--person-homes", str(homes), "--expose", str(homes), launcher="bubblewrap")
    command = f"cat {homes}/bob/secret && echo read; ls {homes}/bob && echo listed; cat ~/secret"
    found = await output(edge, command, person=person(homes))
    assert "the secret of bob" not in found and "listed" not in found and "read\n" not in found
    assert "Permission denied" in found and "the secret of ada" in found


async def test_work_has_the_further_groups_of_its_owner_and_no_others(
    edge: FakeEdge, make_agent: MakeAgent, homes: Path
) -> None:
    project = homes / "project"
    project.mkdir()
    (project / "data").write_text("shared\n")
    os.chown(project, 0, PROJECT)
    project.chmod(0o750)
    await make_agent("--person-homes", str(homes), "--expose", str(homes), launcher="bubblewrap")
    assert "shared" in await output(edge, f"cat {project}/data", person=person(homes))
    without = person(homes, groups=[])
    assert "Permission denied" in await output(edge, f"cat {project}/data", generation=2, person=without)


@pytest.mark.long
async def test_the_user_has_the_unix_name_of_the_owner(
    edge: FakeEdge, make_agent: MakeAgent, homes: Path
) -> None:
    await make_agent("--person-homes", str(homes), launcher="bubblewrap")
    found = await output(
        edge, "id -un; echo $USER $LOGNAME; cd; pwd", person=person(homes, "bob", BOB), owner="b.b"
    )
    assert found.split() == ["bob", "bob", "bob", str(homes / "bob")]


async def test_a_run_as_its_owner_does_not_start_on_a_host_without_homes_of_people(
    edge: FakeEdge, make_agent: MakeAgent, homes: Path
) -> None:
    await make_agent(launcher="bubblewrap")
    assert not edge.observed[-1].inventory.person_users
    wanted = job("touch ~/made", person=person(homes))
    await edge.want(wanted)
    ended = await edge.until_state(wanted.run, "ended")
    assert ended.outcome == "start_failed" and "--person-homes" in ended.step
    assert not (homes / "ada" / "made").exists()


@pytest.mark.long
async def test_a_home_outside_of_the_allowed_folders_is_not_mounted(
    edge: FakeEdge, make_agent: MakeAgent, homes: Path
) -> None:
    await make_agent("--person-homes", str(homes), launcher="bubblewrap")
    wanted = job("true", person=person(homes, home="/var/tmp"))
    await edge.want(wanted)
    ended = await edge.until_state(wanted.run, "ended")
    assert ended.outcome == "start_failed" and "'/var/tmp' is not below" in ended.step


# Without a sandbox


def test_a_plain_process_has_the_groups_and_the_rights_of_its_owner(homes: Path) -> None:
    ada = PersonUsers((homes,)).user(person(homes))
    here = Path("/var/lib/agent")
    folders = [here / name for name in ("check", "in", "out", "tmp", "tools")]
    box = SandboxRequest(["true"], "ada", ada.home, *folders, user=ada.uid, person=ada)
    launch = PlainLauncher().launch(box)
    assert launch.cwd == str(ada.home) and str(ada.home) not in dict(launch.stage)
    spec = {"launcher": "plain", "user": launch.user, "group": launch.group, "groups": list(launch.groups)}
    command = f"id -u; id -G; echo 1 > made; cat {homes}/bob/secret; ls {homes}/bob"
    found = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=launch.cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: workload_entry.enter_workload(spec),
        env={"PATH": "/usr/bin:/bin"},
        check=False,
    ).stdout
    assert found.splitlines()[:2] == [str(ADA), f"{STAFF} {PROJECT}"]
    assert found.count("Permission denied") == 2 and "the secret" not in found
    made = (homes / "ada" / "made").stat()
    assert (made.st_uid, made.st_gid) == (ADA, STAFF)


# The checks of the host


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"uid": 0}, "user 0 is not one of 1000 to"),
        ({"uid": 999}, "user 999 is not one of 1000 to"),
        ({"uid": 65_534}, "or is nobody"),
        ({"uid": 70_001}, "user 70001 is one of 70000 to 99999, which teams have"),
        ({"gid": 0}, "group 0 is not one of 1000 to"),
        ({"gid": 70_001}, "group 70001 is one of 70000 to 99999, which teams have"),
        ({"groups": [PROJECT, 27]}, "group 27 is not one of 1000 to"),
        ({"groups": list(range(2000, 2201))}, "201 groups are more than 200"),
        ({"name": "a:b"}, "'a:b' is not a Unix name"),
        ({"name": "x\ny"}, "is not a Unix name"),
        ({"uid": BOB}, f"belongs to user {ADA}, not to user {BOB}"),
        ({"home": "/etc"}, "'/etc' is not below"),
        ({"home": ""}, "'' is not below"),
        ({"home": "{homes}"}, "is not below"),
        ({"home": "{homes}/bob/../ada"}, "is not below"),
        ({"home": "{homes}/nobody"}, "does not exist on this host"),
        ({"home": "{homes}/ada/secret"}, "can be replaced by others"),
        ({"home": "{homes}/link"}, "is not a folder"),
        ({"home": "{homes}/link/x"}, "can be replaced by others"),
    ],
)
def test_a_host_refuses_an_identity_that_it_does_not_allow(
    homes: Path, fields: dict[str, Any], why: str
) -> None:
    (homes / "link").symlink_to(homes / "ada")
    if "home" in fields:
        fields = {**fields, "home": fields["home"].format(homes=homes)}
    users = PersonUsers((homes,))
    with pytest.raises(PersonUserError) as caught:
        users.user(replace(person(homes), **fields))
    assert why in str(caught.value)


def test_a_home_is_refused_if_others_can_replace_a_folder_above_it(homes: Path) -> None:
    users = PersonUsers((homes,))
    nested = homes / "lab" / "ada"
    nested.mkdir(parents=True)
    os.chown(nested, ADA, STAFF)
    wanted = person(homes, home=str(nested))
    assert users.user(wanted).home == nested
    for mode, owner in ((0o777, 0), (0o775, 0), (0o755, BOB)):
        nested.parent.chmod(mode)
        os.chown(nested.parent, owner, STAFF)
        with pytest.raises(PersonUserError, match="lab must be a folder of root"):
            users.user(wanted)


def test_the_operator_of_a_host_chooses_the_ids_of_people(homes: Path) -> None:
    with pytest.raises(PersonUserError, match="user 4101 is not one of 5000 to 6000"):
        PersonUsers((homes,), UidRange(5_000, 6_000)).user(person(homes))
    system_group = person(homes, groups=[100])
    assert PersonUsers((homes,), UidRange(100, 6_000)).user(system_group).groups == (100,)


def test_the_host_says_why_no_work_runs_as_its_owner(homes: Path) -> None:
    allowed, notes = open_person_users([homes], DEFAULT_PERSON_IDS, UidRange(), True)
    assert allowed.allowed and notes == []
    refused, notes = open_person_users([homes], DEFAULT_PERSON_IDS, UidRange(), False)
    assert not refused.allowed and "can't start work as another user" in notes[0]
    assert open_person_users([], DEFAULT_PERSON_IDS, UidRange(), True)[1] == []


def test_the_home_of_a_person_keeps_its_mode(homes: Path) -> None:
    PersonUsers((homes,)).user(person(homes))
    assert stat.S_IMODE((homes / "ada").stat().st_mode) == 0o700
