"""Test how `./run bench trust` counts, and its short form on a running site."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import trust
from benchmarks.trust_parts.attacks.all_attacks import chosen_attacks
from benchmarks.trust_parts.attacks.registry import Attack, control, defended, run_attacks
from benchmarks.trust_parts.departure import has_close_frame
from benchmarks.trust_parts.suites import count_report

LEAST_ATTACKS = 60


def refused(target: Any) -> None:
    control(target == "a site", "the site answers")
    defended(True, "nothing")


def succeeded(target: Any) -> None:
    defended(False, "the attacker reads a secret")


def not_proved(target: Any) -> None:
    control(False, "the legitimate use works")


def failed(target: Any) -> None:
    raise OSError("nothing answers")


def test_only_an_attack_whose_controls_and_defences_hold_counts_as_held(
    capsys: pytest.CaptureFixture[str],
) -> None:
    attacks = [Attack(do.__name__, "x", do) for do in (refused, succeeded, not_proved, failed)]
    assert run_attacks("a site", attacks) == {"attacks": 4, "held": 1}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("  held refused")
    assert [line.split()[-1] for line in lines[1:]] == ["secret", "works", "answers"]


def test_there_are_enough_attacks_with_names_and_sentences_of_their_own() -> None:
    attacks = chosen_attacks()
    assert len(attacks) >= LEAST_ATTACKS
    assert len({each.what for each in attacks}) == len(attacks)
    assert {each.name for each in chosen_attacks(short=True)} < {each.name for each in attacks}
    assert attacks[-1].do.__module__.endswith(".records"), "they break the audit record"


def test_the_figures_have_the_order_and_the_names_of_the_whole_run() -> None:
    found = {
        "site": {"attacks": 60, "held": 59, "connections": 5000, "healthz_ms": 3.0},
        "db_hang 600": {"lost": 1, "double": 0},
        "db_hang 60": {"lost": 0, "double": 0},
        "oidc": {"oidc": {"passed": 3, "failed": 0}},
    }
    figures = trust._figures(found, tuple(trust.FIGURES))
    assert tuple(figures) == trust.ORDER
    assert figures["db_hang"] == {"60": {"lost": 0, "double": 0}, "600": {"lost": 1, "double": 0}}
    assert (figures["held"], figures["oidc"]) == (59, {"passed": 3, "failed": 0})
    assert figures["restore_s"] is None and figures["edge_hang"] is None, "these parts failed"
    assert trust._figures(found, ("connections",)) == {"connections": 5000, "healthz_ms": 3.0}


def test_an_unknown_part_is_refused_by_its_name() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="'nothing' is none of oidc, ldap"):
        trust._parts("attacks,nothing")
    assert trust._parts("attacks,oidc") == ("oidc", "attacks")


def test_a_report_of_tests_is_counted() -> None:
    report = '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>'
    assert count_report(report) == {"passed": 3, "failed": 3}


def test_a_close_frame_is_found_after_pings_and_long_frames() -> None:
    ping, close = b"\x89\x04\x88\x88\x88\x88", b"\x88\x02\x03\xe8"
    text = b"\x81\x7e\x01\x00" + b"\x88" * 256
    assert not has_close_frame(ping + text)
    assert has_close_frame(ping + text + close)
    assert not has_close_frame(b"")


def run_trust(root: Path, *options: str) -> dict[str, Any]:
    """Return the figures of the benchmark with these options."""
    completed = subprocess.run(
        [sys.executable, str(root / "run"), "bench", "trust", *options, "--json"],
        capture_output=True,
        text=True,
        timeout=580,
        env={name: value for name, value in os.environ.items() if not name.endswith("_URL")},
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    figures: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    assert None not in figures.values(), completed.stderr[-3000:]
    if "attacks" in figures:
        assert figures["held"] == figures["attacks"], completed.stderr[-6000:]
    return figures


@pytest.mark.site
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("site")
def test_attacks_on_a_running_site_are_refused_and_work_outlives_a_short_hang(root: Path) -> None:
    figures = run_trust(root, "--short")
    assert figures["attacks"] == len(chosen_attacks(short=True))
    assert figures["db_hang"] == {str(trust.SHORT_HANG_SECONDS): {"lost": 0, "double": 0}}


@pytest.mark.site
@pytest.mark.long
@pytest.mark.nginx
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("site")
def test_sign_ins_and_work_outlive_the_first_web_edge_and_engine_of_a_site_behind_nginx(root: Path) -> None:
    assert run_trust(root, "--only", "failover_s")["failover_s"] > 0


@pytest.mark.site
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("site")
def test_an_upgrade_from_version_0_1_loses_no_running_work_and_no_charge(root: Path) -> None:
    assert run_trust(root, "--only", "upgrade_lost") == {"upgrade_lost": 0}
