"""Test that the current code and each frozen version of the wire protocol can read each other."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from agent import protocol
from tests.agent.conftest import MakeAgent, job
from tests.agent.fake_edge import FakeEdge
from tests.agent.freeze_protocol import FOLDER, FrozenProtocol, wire_types

VERSIONS = [FrozenProtocol(path) for path in sorted(FOLDER.glob("v*"))]
SOURCE = Path(protocol.__file__).read_text()


def changed(*changes: tuple[str, str]) -> types.ModuleType:
    """Return the protocol module with some source lines replaced."""
    source = SOURCE
    for before, after in changes:
        assert source.count(before) == 1, f"{before!r} must occur in protocol.py once"
        source = source.replace(before, after)
    module = types.ModuleType("agent.changed_protocol")
    sys.modules[module.__name__] = module  # dataclasses look up the names of annotations in sys.modules
    exec(compile(source, "changed_protocol.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("frozen", VERSIONS, ids=lambda frozen: frozen.folder.name)
def test_a_released_version_can_still_be_read_and_written(frozen: FrozenProtocol) -> None:
    assert frozen.problems(protocol) == []


def test_fields_added_within_a_version_are_frozen() -> None:
    new = FrozenProtocol(FOLDER / f"v{protocol.VERSION}").unknown(protocol)
    assert not new, f"{', '.join(new)}: not frozen yet; run: python -m tests.agent.freeze_protocol --add"


def test_every_frame_and_body_is_frozen_with_all_fields_set() -> None:
    frozen = FrozenProtocol(FOLDER / "v1")
    assert set(frozen.names) == set(wire_types(protocol)) and len(frozen.names) == 12
    for name, kind in frozen.names.items():
        stored = json.loads(frozen.text(name))
        assert set(stored) == set(frozen.fields[kind]) and None not in stored.values()


# Description of a change -> (lines before and after, a part of the expected problem).
BREAKING: dict[str, tuple[list[tuple[str, str]], str]] = {
    "a field removed": ([("    spooled_batches: int = 0\n", "")], "observed.spooled_batches: gone"),
    "a nested field removed": ([("    numa_node: int | None = None\n", "")], "numa_node: gone"),
    "a field renamed": (
        [("    max_runtime_seconds: int = 0\n", "    longest: int = 0\n")],
        "max_runtime_seconds: gone",
    ),
    "a number that becomes text": ([("    streams: int = 0", '    streams: str = "0"')], "streams: "),
    "text that becomes a number": (
        [("    signature: str  # Ed25519, base64\n", "    signature: int\n")],
        "signature",
    ),
    "an integer that becomes a float": (
        [("    exit_code: int | None", "    exit_code: float | None")],
        "exit_code",
    ),
    "a value that becomes a list": (
        [("    throttle_reasons: int | None", "    throttle_reasons: list[int] | None")],
        "throttle_reasons",
    ),
    "an optional field that becomes required": (
        [
            ('    public_key: str = ""  #', "    public_key: str  #"),
            ('    signature: str = ""  # signature', "    signature: str  # signature"),
        ],
        "public_key: missing",
    ),
    "a new field that is required": (
        [("    instance: str  # random,", "    mood: str\n    instance: str  # random,")],
        "mood: missing",
    ),
    "another default": (
        [("    poll_seconds: float = 5.0", "    poll_seconds: float = 7.0")],
        "5.0 became 7.0",
    ),
    "another nested default": ([("_seconds: float = 600.0", "_seconds: float = 60.0")], "600.0 became 60.0"),
    "a removed frame": ([('    "proof": Proof,\n', "")], "proof: not a frame up"),
    "another address": ([('SYNC_PATH = "/agent/v1/sync"', 'SYNC_PATH = "/agent/sync"')], "SYNC_PATH"),
}


@pytest.mark.parametrize("change", BREAKING)
def test_a_change_that_breaks_an_older_peer_is_found(change: str) -> None:
    changes, words = BREAKING[change]
    found = FrozenProtocol(FOLDER / "v1").problems(changed(*changes))
    assert any(words in problem for problem in found), found


def test_an_optional_new_field_is_compatible() -> None:
    frozen = FrozenProtocol(FOLDER / "v1")
    added = changed(("    spooled_batches: int = 0\n", '    spooled_batches: int = 0\n    mood: str = ""\n'))
    assert frozen.problems(added) == []
    assert frozen.unknown(added) == ["Observed.mood"]


def test_freezing_new_fields_keeps_frozen_fields_unchanged(tmp_path: Path) -> None:
    frozen = FrozenProtocol(tmp_path / "v1")
    frozen.add(protocol)
    before = {path.name: json.loads(path.read_text()) for path in frozen.folder.iterdir()}
    added = changed(("    spooled_batches: int = 0\n", '    spooled_batches: int = 0\n    mood: str = ""\n'))
    frozen.add(added)
    assert frozen.unknown(added) == [] and frozen.problems(added) == []
    after = {path.name: json.loads(path.read_text()) for path in frozen.folder.iterdir()}
    assert after["observed.json"].pop("mood")
    assert after["fields.json"]["types"]["Observed"].pop("mood")
    assert after == before


@pytest.mark.parametrize("version", [0, 2, "1", None])
@pytest.mark.parametrize("name", ["observed", "desired", "JoinRequest"])
def test_another_version_is_rejected_with_a_message(name: str, version: object) -> None:
    with pytest.raises(protocol.UnsupportedVersionError, match="version: .*; allowed: 1"):
        kind = wire_types(protocol)[name]
        protocol.parse(kind, {"version": version, "kind": name, "all": "else is new"})


async def test_an_agent_ignores_a_server_of_another_version_and_keeps_its_jobs(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    assert agent.process is not None
    await edge.want(job("sleep 60", units=agent.units[:1]))
    await edge.until_state("run-1", "running")
    edge.silent = True
    heard = len(edge.observed)
    text = (
        protocol.encode(edge.desired())
        .replace('"version":1', '"version":2', 1)
        .replace('"verb":"start"', '"verb":"stop"')
    )
    for socket in list(edge.sync_sockets):
        await socket.send_str(text)
    await edge.until(lambda: not edge.sync_sockets)  # the agent disconnects and retries much later
    await agent.after_steps("shim_poll", 5)
    assert len(edge.observed) <= heard + 1
    assert json.loads((agent.state / "runs" / "run-1" / "order.json").read_text()) == {}
