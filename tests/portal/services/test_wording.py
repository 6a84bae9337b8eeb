"""Test the sentences for people: every reason has one, with or without its numbers.

No sentence names an object that the viewer may not see.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import pytest

from portal.services.work import launch
from portal.wording import equivalent_commands, formatting, reason_texts
from portal.wording.notices import notice_texts
from scheduler.core.reasons import ReasonCode
from tests.world import H100, World

FULL = {
    "ahead": 3,
    "at": 1772528400,
    "asked": 900_000,
    "borrowed": 840,
    "cap": 840,
    "currency": "EUR",
    "end": 1772529400,
    "exit_code": 2,
    "free": 2,
    "guaranteed": 1680,
    "held": 1680,
    "hosts": 2,
    "largest": 8,
    "left": 840,
    "limit": 1680,
    "longest": 604_800,
    "model": H100,
    "models": [H100],
    "min_memory_mib": 80_000,
    "min_compute_capability": 90,
    "need": 4,
    "of": 8,
    "owner": 1,
    "profile": "",
    "project": 1,
    "reservation": None,
    "spent": "100.00",
    "start": 1772528400,
    "team": 1,
    "total": 16,
    "units": 9,
    "until": 1772528400,
    "workload": 1,
    "workloads": 2,
}


@pytest.mark.parametrize("code", list(ReasonCode))
@pytest.mark.parametrize("numbers", [{}, FULL, dict.fromkeys(FULL)], ids=["none", "all", "unknown"])
def test_every_reason_is_a_sentence_with_or_without_its_numbers(
    code: ReasonCode, numbers: dict[str, object]
) -> None:
    assert code.value in reason_texts.REASONS
    sentence = reason_texts.reason_sentence(code.value, numbers)
    assert sentence[0].isupper() or sentence[0].isdigit()
    assert sentence.endswith(".")
    assert (
        "None" not in sentence
        and "  " not in sentence
        and "{" not in sentence
        and " ." not in sentence
        and "()" not in sentence
    ), sentence


def test_a_reason_without_a_model_does_not_repeat_gpus() -> None:
    sentence = reason_texts.reason_sentence("over_quota", {"held": 8400, "limit": 8400, "need": 840})
    assert sentence.startswith("Its team holds 10 GPUs and may hold 10 GPUs; this needs 1 GPU.")
    assert all(
        "GPUs of GPUs" not in reason_texts.reason_sentence(code, {"held": 8400, "need": 840})
        for code in reason_texts.REASONS
    )


def test_sentences_contain_the_numbers() -> None:
    sentence = reason_texts.reason_sentence(
        "over_quota", {"held": 6720, "limit": 6720, "need": 1680, "model": H100, "may_borrow": True}
    )
    assert "8 GPUs" in sentence and "2 GPUs" in sentence and "H100 80GB" in sentence
    sentence = reason_texts.reason_sentence("too_big_for_any_host", {"units": 10, "largest": 8, "hosts": 1})
    assert "10 GPUs on one host, the largest has 8" in sentence
    assert "exit code 2" in reason_texts.reason_sentence("failed", {"exit_code": 2})


@pytest.mark.django_db
def test_names_appear_only_for_viewers_who_may_see_them(world: World) -> None:
    workload = launch.submit_job(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name="hush hush",
        command="x",
        units=1,
        now=world.now,
    )
    numbers = {"team": world.vision.team.pk, "workload": workload.pk}
    assert "hush hush" in reason_texts.reason_sentence("evicted_for_guarantee", numbers, world.vision.lead)
    assert "Vision" in reason_texts.reason_sentence("evicted_for_guarantee", numbers, world.auditor)
    # A team that shares a pool may know whose guarantee reclaimed the GPUs, but not for which work.
    for viewer in (world.language.member, world.stranger):
        sentence = reason_texts.reason_sentence("evicted_for_guarantee", numbers, viewer)
        assert "Vision" in sentence and "hush" not in sentence
    sentence = reason_texts.reason_sentence("evicted_for_guarantee", numbers, None)
    assert "hush" not in sentence and "Vision" not in sentence


@pytest.mark.parametrize("kind", list(notice_texts.NOTICE_SENTENCES))
def test_every_notification_is_a_sentence(kind: str) -> None:
    numbers = {
        "name": "train",
        "host": "h1",
        "attempt": 2,
        "outcome": "finished",
        "code": "evicted_for_guarantee",
        "expected_start": 1772528400,
        "before": 1772520000,
        "start": 1772528400,
        "stop_at": 1772528400,
        "author": "ada",
        "what": "8 GPUs",
        "team": "Vision",
        "by": "op",
        "comment": "fine",
        "trouble": "it fell silent",
        "percent": 80,
        "month": "2026-01-01",
    }
    sentence = notice_texts.notice_sentence(kind, numbers)
    assert "None" not in sentence and len(sentence) > 10


def test_durations_and_amounts_are_formatted_for_people() -> None:
    assert [formatting.duration(n) for n in (1, 59, 60, 3_660, 200_000, None)] == [
        "1 second",
        "59 seconds",
        "1 minute",
        "1 h 01 min",
        "2 days 7 h",
        "an unknown time",
    ]
    assert [formatting.gpus(n) for n in (840, 1680, 120, None)] == [
        "1 GPU",
        "2 GPUs",
        "0.14 GPU",
        "an unknown number of GPUs",
    ]


def test_the_equivalent_cli_command_and_api_call_are_shown() -> None:
    start = datetime(2026, 3, 2, 9, tzinfo=UTC)
    fields = {
        "project": "vision/main",
        "pool": "shared",
        "units": 2,
        "models": [H100],
        "start": start,
        "why": "it's due",
        "nvlink": False,
    }
    line = equivalent_commands.cli_command("request_reservation", fields)
    assert shlex.split(line) == [
        "gpupool",
        "reservation",
        "create",
        "--project",
        "vision/main",
        "--pool",
        "shared",
        "--gpus",
        "2",
        "--model",
        H100,
        "--start",
        "2026-03-02T09:00:00+00:00",
        "--why",
        "it's due",
    ]
    call = equivalent_commands.curl_command("request_reservation", fields, base="http://localhost:8000")
    assert (
        "http://localhost:8000/api/v1/reservations/" in call
        and '"units": 2' in call
        and "$GPUPOOL_TOKEN" in call
    )


@pytest.mark.parametrize(
    "command", ["echo hi", "echo hi && rm -rf x", "a 'b' c", 'say "x"', "trailing\\", "$(date)", "a\nb"]
)
def test_a_command_can_be_pasted_into_a_shell(command: str) -> None:
    words = shlex.split(equivalent_commands.cli_command("submit_job", {"name": "x", "command": command}))
    after = words[words.index("--") + 1 :]
    assert " ".join(after) == command
