"""Test each command: its effect, its one-line output, and its exit code for scripts."""

from __future__ import annotations

import json
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.gpu.simulated_models import mig_profiles_of
from cli import credentials
from cli.formatting import format_duration
from cli.param_types import DurationType, parse_timestamp
from portal.models import AuditEvent, Template, User
from portal.services.people.api_tokens import create_token
from portal.wording.equivalent_commands import cli_command
from scheduler.models import Host, MaintenanceWindow, Reservation, Run, Storage, Volume, Workload
from scheduler.runs import logs
from telemetry.models import CostCentreStatement, Statement
from tests.cli.conftest import Gpupool
from tests.world import H100, World

SignIn = Callable[[User], str]


def test_login_stores_the_token_readable_by_its_owner_only(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    path = credentials.credentials_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "vision-1" in gpupool("me").out
    assert gpupool("logout").code == 0
    answer = gpupool("me")
    assert (answer.code, answer.err.count("\n")) == (3, 1)


def assert_explained(gpupool: Gpupool, short: str, world: World) -> None:
    """Check `gpupool why`: options for an earlier start, comparison with another workload, fairness table."""
    soon = gpupool("why", short, "--sooner")
    assert soon.code == 0 and ("sooner:" in soon.out or "No alternative" in soon.out)
    submitted = gpupool(
        "job", "run", "--gpus", "1", "--model", H100, "--pool", "shared", "--name", "other", "--", "true"
    )
    assert submitted.code == 0, submitted.err
    other = Workload.objects.get(name="other")
    answer = gpupool("why", short, "--them", "other")
    assert (
        answer.code == 0 and "other and not python:" in answer.out and "Without other, python" in answer.out
    )
    assert json.loads(gpupool("why", short, "--them", "other", "--json").out)["rule"]
    Workload.objects.filter(pk=other.pk).update(outcome="finished")
    Workload.objects.filter(pk=other.pk, state=other.state).update(state="ended")
    over = gpupool("why", "other", "--them", short)
    assert over.code != 0 and "other has ended (finished), so it is no longer in the queue." in over.err
    other.delete()
    table = gpupool("queue", "--fairness", "--pool", "shared").out
    assert all(team.team.slug in table for team in world.teams)
    assert set(json.loads(gpupool("queue", "--fairness", "--json").out)) == {"shared", "vision-only"}
    assert gpupool("queue", "--fairness", "--pool", "none").code == 4


def test_a_wrong_token_or_address_is_not_stored(gpupool: Gpupool, live_server: Any) -> None:
    assert gpupool("login", "--url", live_server.url, "--token", "gpp_wrong").code == 3
    assert gpupool("login", "--url", live_server.url, "--token", "gpp_\u202e").code in (3, 5)
    assert gpupool("login", "--url", "ftp://x", "--token", "x").code == 2
    assert gpupool("login", "--url", "http://127.0.0.1:9", "--token", "x").code == 5
    assert not credentials.credentials_path().exists()


def test_a_local_file_that_cannot_be_written_ends_with_exit_code_1(
    gpupool: Gpupool, live_server: Any, served_world: World
) -> None:
    _, token = create_token(actor=served_world.vision.member, name="cli", now=datetime.now(UTC))
    path = credentials.credentials_path()
    path.mkdir(parents=True)  # a folder at the path of the credentials file
    for words in (("login", "--url", live_server.url, "--token", token), ("logout",)):
        answer = gpupool(*words)
        assert answer.code == 1 and answer.err == f"gpupool: {path}: Is a directory\n", words


def test_a_job_is_run_explained_extended_and_cancelled(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    submitted = gpupool(
        "job",
        "run",
        "--gpus",
        "2",
        "--model",
        H100,
        "--pool",
        "shared",
        "--env",
        "A=b c",
        "--",
        "python",
        "train.py",
        "a b",
    )
    assert submitted.code == 0, submitted.err
    workload = Workload.objects.get()
    assert (workload.name, workload.command, workload.environment) == (
        "python",
        "python train.py 'a b'",
        {"A": "b c"},
    )
    assert AuditEvent.objects.get(verb="submit_job").via == "cli"
    short = str(workload.public_id)[:8]
    assert "python" in gpupool("queue").out
    assert "python is queued" in gpupool("why", short).out
    assert_explained(gpupool, short, served_world)
    assert gpupool("extend", "python", "--by", "1h").code == 0
    cancelled = gpupool("cancel", short, "--json")
    assert json.loads(cancelled.out)["outcome"] == "cancelled"
    again = gpupool("cancel", short)
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith("gpupool: ") and "already ended" in again.err


def test_the_log_of_a_job_is_printed_and_its_outcome_is_the_exit_code(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    gpupool("job", "run", "--pool", "shared", "--name", "train", "--", "true")
    workload = Workload.objects.get()
    run = Run.objects.create(
        workload=workload,
        attempt=1,
        host=served_world.hosts["alpha"],
        generation=1,
        placed_at=served_world.now,
        state="ended",
    )
    logs.append_log(run.public_id, 0, "line one\nline two\n")
    Workload.objects.filter(pk=workload.pk, state="queued").update(
        state="ended", outcome="finished", attempt=1
    )
    assert gpupool("job", "logs", "train").out == "line one\nline two\n"
    followed = gpupool("job", "logs", "train", "-f")
    assert (followed.code, followed.out) == (0, "line one\nline two\n")
    Workload.objects.filter(pk=workload.pk).update(outcome="failed")
    assert gpupool("job", "logs", "train", "-f").code == 1


def test_a_running_notebook_is_opened_by_its_address(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    assert gpupool("notebook", "launch", "--pool", "shared", "--name", "nb").code == 0
    waiting = gpupool("notebook", "open", "nb", "--print")
    assert waiting.code == 1 and "while it runs" in waiting.err
    Workload.objects.filter(state="queued").update(state="running")
    assert ".gpupool/enter?code=" in gpupool("notebook", "open", "nb", "--print").out


def test_a_reservation_is_previewed_created_and_cancelled(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    wish = [
        "reservation",
        "create",
        "--pool",
        "shared",
        "--gpus",
        "4",
        "--model",
        H100,
        "--start",
        "tomorrow 09:00",
        "--name",
        "review",
    ]
    assert "It fits" in gpupool(*wish, "--for", "8h", "--dry-run").out
    assert "Confirmed" in gpupool(*wish, "--for", "8h").out
    assert "review" in gpupool("reservation", "list").out
    assert gpupool("reservation", "cancel", "review").code == 0
    assert Reservation.objects.get().state == "cancelled"
    for wrong in (["--for", "1s"], ["--for", "400d"], []):
        assert gpupool(*wish, *wrong).code in (1, 2)
    full = gpupool(
        "reservation", "create", "--pool", "shared", "--gpus", "9999999999", "--start", "now", "--for", "1h"
    )
    assert full.code == 1 and "allowed" in full.err.lower() or "less than" in full.err.lower()


def test_show_lists_attempts_and_missing_checkpoints(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    gpupool("job", "run", "--pool", "shared", "--name", "moved", "--", "true")
    assert "another home folder" not in gpupool("show", "moved").out
    workload, saved = Workload.objects.get(), served_world.now
    for number, name in enumerate(("alpha", "beta"), start=1):
        homes = Storage.objects.create(key=name, listed_at=saved)
        Host.objects.filter(name=name).update(storage=homes)
        Run.objects.create(
            workload=workload,
            attempt=number,
            host=served_world.hosts[name],
            generation=number,
            placed_at=saved,
            state="ended",
            outcome="checkpointed",
            ended_at=saved,
            checkpoint_at=saved,
        )
    Workload.objects.filter(pk=workload.pk).update(attempt=2)
    second, first = (line for line in gpupool("show", "moved").out.splitlines() if "checkpointed" in line)
    assert "beta" in second and second.rstrip().endswith("starts from the beginning: another home folder")
    assert "alpha" in first and "anew" not in first
    runs = json.loads(gpupool("show", "moved", "--json").out)["runs"]
    assert [(run["attempt"], run["begins_anew"], bool(run["checkpoint_at"])) for run in runs] == [
        (2, True, True),
        (1, False, True),
    ]


def test_work_of_another_team_is_invisible(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.vision.member)
    gpupool("job", "run", "--pool", "shared", "--name", "secret", "--", "true")
    name = str(Workload.objects.get().public_id)
    sign_in(served_world.language.member)
    for words in (
        ["why", name],
        ["cancel", name],
        ["job", "logs", name],
        ["why", "secret"],
        ["show", name[:8]],
    ):
        answer = gpupool(*words)
        assert (answer.code, answer.out) == (4, ""), words
    assert "secret" not in gpupool("queue").out


WRONG_LINES = [
    ["job", "run"],
    ["job", "run", "--gpus", "two", "--", "x"],
    ["job", "run", "--env", "novalue", "--", "x"],
    ["notebook", "launch", "--max-runtime", "soon"],
    ["reservation", "create", "--start", "someday", "--for", "1h"],
    ["reservation", "create", "--start", "now"],
    ["nonsense"],
    ["usage", "--by", "planet"],
]


def test_an_invalid_command_line_is_reported_briefly(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    for words in WRONG_LINES:
        answer = gpupool(*words)
        assert (answer.code, answer.out) == (2, ""), words
        assert answer.err.startswith("gpupool: "), words
        assert "Traceback" not in answer.err


WRONG_VALUES = [
    ["job", "run", "--pool", "shared", "--gpus", "0", "--", "x"],
    ["job", "run", "--pool", "shared", "--gpus", "-4", "--", "x"],
    ["job", "run", "--pool", "shared", "--gpus", "9" * 30, "--", "x"],
    ["job", "run", "--pool", "shared", "--name", "x" * 10_000, "--", "x"],
    ["job", "run", "--pool", "shared", "--name", "a\u202eb", "--", "x"],
    ["job", "run", "--pool", "shared", "--model", "X9", "--", "x"],
    ["reservation", "create", "--pool", "shared", "--start", "9999-12-31T23:00", "--for", "1h"],
    ["reservation", "create", "--pool", "shared", "--start", "2020-01-01", "--for", "1h"],
    ["usage", "--start", "9999-12-31T00:00:00Z"],
    ["usage", "--start", "2026-01-01T00:00:00Z"],
    ["utilisation", "waterfall", "--start", "2026-01-01T00:00:00Z"],
    ["utilisation", "waterfall", "--start", "2025-01-01T00:00:00Z", "--end", "2026-06-01T00:00:00Z"],
    ["utilisation", "waterfall", "--team", "nowhere"],
    ["queue", "--pool", "a\udcff"],
]


def test_an_invalid_value_is_rejected_by_the_portal_with_a_message(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    for words in WRONG_VALUES:
        answer = gpupool(*words)
        assert answer.code in (1, 2), words
        assert answer.err.startswith("gpupool: "), words
        assert "Traceback" not in answer.err
    assert not Workload.objects.exists() and not Reservation.objects.exists()


def test_every_list_command_supports_json(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.vision.lead)
    for words in (
        "queue",
        "hosts",
        "status",
        "usage",
        "utilisation waterfall",
        "utilisation waits --period 24h",
        "me",
        "job list",
        "notebook list",
        "reservation list",
        "quota list",
        "approval list",
    ):
        answer = gpupool(*words.split(), "--json")
        assert answer.code == 0, (words, answer.err)
        json.loads(answer.out)
        assert gpupool(*words.split()).code == 0


def test_an_operator_approves_a_request_of_a_lead(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.lead)
    asked = gpupool(
        "quota",
        "request",
        "--team",
        "vision",
        "--pool",
        "shared",
        "--model",
        H100,
        "--guaranteed-gpus",
        "9",
        "--json",
    )
    id_ = json.loads(asked.out)["id"]
    assert gpupool("approval", "approve", id_).code == 1
    sign_in(served_world.operator)
    assert "Approved" in gpupool("approval", "approve", id_[:8]).out
    assert gpupool("approval", "decline", id_, "--comment", "no").code == 1


def test_the_command_line_shown_on_a_page_is_equivalent(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    line = cli_command(
        "submit_job",
        {
            "project": "vision/vision-main",
            "pool": "shared",
            "name": "from a page",
            "units": 2,
            "models": [H100],
            "nvlink": False,
            "preemptible": False,
            "priority": "high",
            "max_runtime_seconds": 3600,
            "environment": {"A": "x y"},
            "command": "echo hello",
        },
    )
    answer = gpupool(*shlex.split(line)[1:])
    assert answer.code == 0, answer.err
    submitted = Workload.objects.get()
    assert (
        submitted.name,
        submitted.units,
        submitted.preemptible,
        submitted.command,
        submitted.environment,
    ) == (
        "from a page",
        2,
        False,
        "echo hello",
        {"A": "x y"},
    )


def examples() -> list[str]:
    text = (Path(__file__).resolve().parent.parent.parent / "docs" / "cli.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line.removeprefix("$ gpupool ") for block in blocks for line in block.splitlines()]


@pytest.mark.long
def test_every_example_of_the_documentation_runs(
    gpupool: Gpupool,
    sign_in: SignIn,
    served_world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # for the files that examples write
    lead = served_world.vision.lead
    User.objects.filter(pk=lead.pk).update(operator=True, finance=True)
    month = f"{served_world.now:%Y-%m}"
    CostCentreStatement.objects.create(
        statement=Statement.objects.create(month=served_world.now.date().replace(day=1)),
        cost_centre="CC-4110",
        sequence=1,
        number=f"{month}/CC-4110/1",
        due_on=served_world.now.date(),
        total=0,
    )
    (tmp_path / "ldap-password").write_text("very secret\n")
    (tmp_path / "people.csv").write_text("user name,e-mail\ngrace,grace@example.org\n")
    (tmp_path / "centres.csv").write_text("code,name\nCC-5300,Service\n")
    type(served_world.static).objects.filter(pk=served_world.static.pk).update(slug="vision-only")
    offered = {H100: [asdict(profile) for profile in mig_profiles_of(H100)]}
    gpus = [{"uuid": gpu.uuid, "units": [{"profile": ""}]} for gpu in served_world.hosts["alpha"].gpus.all()]
    reported = {"mig_profiles": offered, "gpus": gpus}
    Host.objects.filter(name="alpha").update(name="h3", hardware={"reported": reported})
    Host.objects.filter(name="delta").update(
        name="gpu-07", last_sync_at=served_world.now - timedelta(hours=1)
    )
    Template.objects.create(
        slug="old-lab", name="Old lab", kind="notebook", type="interactive", max_runtime_seconds=60
    )
    sign_in(lead)
    lines = examples()
    assert len(lines) > 20
    for line in lines:
        if line.startswith("login "):
            continue  # `sign_in` has already run it, with a real address
        if line.startswith("export "):
            line = line.replace("2026-10", f"{served_world.now:%Y-%m}")
        if line.startswith("host cancel-maintenance "):
            MaintenanceWindow.objects.update(id=int(line.split()[-1]))
        answer = gpupool(*shlex.split(line.replace("2026-10", month)))
        assert answer.code == 0, f"{line}: {answer.err}"


def test_every_command_is_documented() -> None:
    import click

    from cli.main import cli

    text = (Path(__file__).resolve().parent.parent.parent / "docs" / "cli.md").read_text()
    for name, entry in cli.commands.items():
        for verb in entry.commands if isinstance(entry, click.Group) else [""]:
            assert f"gpupool {name} {verb}".strip() in text, f"{name} {verb}"


def test_durations_and_times_are_parsed() -> None:
    read = DurationType().convert
    assert [read(text, None, None) for text in ("90m", "8h", "1d12h", "3600")] == [
        5400,
        28_800,
        129_600,
        3600,
    ]
    assert (
        format_duration(93_600) == "26 h"
        and format_duration(45) == "45 s"
        and format_duration(200_000) == "2 d 7 h"
    )
    now = datetime.fromisoformat("2026-03-02T12:00:00").astimezone()
    assert parse_timestamp("tomorrow 09:00", now).isoformat().startswith("2026-03-03T09:00:00")
    assert parse_timestamp("2026-03-02T09:00:00+00:00", now).isoformat() == "2026-03-02T09:00:00+00:00"


def test_homes_are_listed_with_size_and_unknown_values(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    member = served_world.vision.member
    sign_in(member)
    assert "No home yet" in gpupool("volume", "list").out
    storage = Storage.objects.create(key="store1", listed_at=served_world.now)
    Host.objects.filter(name__in=["alpha", "beta"]).update(storage=storage)
    Volume.objects.create(
        storage=storage, name=member.username, size_bytes=4_200_000_000, size_complete=False
    )
    answer = gpupool("volume", "list").out
    assert "over 4.2 GB" in answer and "alpha, beta" in answer and "not yet" in answer
    assert json.loads(gpupool("volume", "list", "--json").out)[0]["files"] is None


def test_following_a_job_prints_lines_that_arrive_after_its_end(
    gpupool: Gpupool, sign_in: SignIn, served_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(served_world.vision.member)
    gpupool("job", "run", "--pool", "shared", "--name", "train", "--", "true")
    run = Run.objects.create(
        workload=Workload.objects.get(),
        attempt=1,
        host=served_world.hosts["alpha"],
        generation=1,
        placed_at=served_world.now,
        state="ended",
    )
    logs.append_log(run.public_id, 0, "first\n")
    Workload.objects.filter(state="queued").update(state="ended", outcome="finished", attempt=1)
    monkeypatch.setattr("cli.commands.jobs.time.sleep", lambda _: logs.append_log(run.public_id, 6, "last\n"))
    assert gpupool("job", "logs", "train", "-f").out == "first\nlast\n"
