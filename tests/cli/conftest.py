"""Provide fixtures for the command line against a real server over HTTP, with users of every role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from portal.models import User
from portal.services.people import api_tokens
from tests.world import World, build_world


@dataclass
class CommandResult:
    code: int
    out: str
    err: str


Gpupool = Callable[..., CommandResult]


@pytest.fixture
def served_world(transactional_db: None) -> World:
    """Return the shared organisation at the current time, committed to the database."""
    return build_world(datetime.now(UTC))


@pytest.fixture
def gpupool(
    live_server: Any,
    served_world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Gpupool:
    """Return a function that runs one command line with its own home folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GPUPOOL_URL", raising=False)
    monkeypatch.delenv("GPUPOOL_TOKEN", raising=False)

    def call(*words: str) -> CommandResult:
        code = run(list(words))
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return call


@pytest.fixture
def sign_in(live_server: Any, gpupool: Gpupool) -> Callable[[User], str]:
    """Return a function that signs a user in and returns the token."""

    def call(user: User) -> str:
        _, token = api_tokens.create_token(actor=user, name="cli", now=datetime.now(UTC))
        answer = gpupool("login", "--url", live_server.url, "--token", token)
        assert answer.code == 0, answer.err
        return token

    return call
