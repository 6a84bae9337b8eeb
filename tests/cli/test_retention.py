"""Test the retention on the command line: show, preview, set, and refusals with the words of the portal."""

from __future__ import annotations

import json

from telemetry.models import Retention
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.cli.test_hosts import run_ok
from tests.world import World


def test_an_operator_shows_previews_and_sets_the_retention(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    shown = run_ok(gpupool, "retention show")
    assert "samples" in shown and "14 days" in shown and "unlimited" in shown
    preview = run_ok(gpupool, "retention set --sample-days 7 --hour-days 400 --preview")
    assert "Older data of these levels would be deleted: samples, hours." in preview
    assert "Nothing is changed." in preview
    rows = json.loads(run_ok(gpupool, "retention set --sample-days 7 --preview --json"))
    assert [row["level"] for row in rows if row["deletes"]] == ["samples"]
    assert "400 days" in run_ok(gpupool, "retention set --hour-days 400 --why full")
    run_ok(gpupool, "retention set --hour-days unlimited --sample-days 7")
    row = Retention.objects.get()
    assert (row.sample_days, row.minute_days, row.hour_days, row.day_days) == (7, 30, None, None)


def test_bad_input_and_people_without_the_right_are_refused(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.people["operator"])
    for line, message in (
        ("--sample-days 1", "sample_days is 1; allowed: a whole number from 2 to 3,649 days."),
        (
            "--hour-days many",
            "hour_days is 'many'; allowed: a whole number from 100 to 3,650 days, or unlimited.",
        ),
        ("--preview", "nothing to change is given; allowed: one or more of"),
    ):
        refused = gpupool("retention", "set", *line.split())
        assert refused.code == 1 and message in refused.err, line
    sign_in(served_world.vision.lead)
    assert "Only operators and auditors" in gpupool("retention", "show").err
    assert "Only an operator" in gpupool("retention", "set", "--sample-days", "7").err
