"""Test that every setting, verb of ./run, reason, state and endpoint is documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from django.urls import URLPattern, URLResolver, get_resolver

from scheduler.core.reasons import ReasonCode
from tests.architecture.sources import ROOT, nodes, parsed
from tests.architecture.test_states import tables


def text(name: str) -> str:
    path = ROOT / "docs" / name
    return path.read_text() if path.exists() else ""


def settings_read() -> set[str]:
    """Return every variable that config.environment or ./run reads."""
    pattern = re.compile(r"^(GPUPOOL_[A-Z_]+|DATABASE_URL|REDIS_URL)$")
    return {
        node.value
        for path in (ROOT / "config" / "environment.py", *(ROOT / "tools").glob("*.py"))
        for node in nodes(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.match(node.value)
    } - {"GPUPOOL_"}


def test_every_setting_is_documented() -> None:
    documented = text("operations.md")
    missing = sorted(name for name in settings_read() if f"`{name}`" not in documented)
    assert not missing, f"docs/operations.md lacks {missing}"


def test_every_setting_that_the_code_reads_is_declared() -> None:
    """Check the declarations, because an undeclared setting could never be set, validated or documented."""
    own_setting = re.compile(r"GPUPOOL_[A-Z_]+")
    declared = {
        str(getattr(target, "id", ""))
        for node in parsed(ROOT / "config" / "settings.py").body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    read = {
        name
        for package in ("scheduler", "telemetry", "portal")
        for path in (ROOT / package).rglob("*.py")
        for node in nodes(parsed(path))
        for name in [getattr(node, "attr", None) or getattr(node, "value", None)]
        if isinstance(node, ast.Attribute | ast.Constant)
        and isinstance(name, str)
        and own_setting.fullmatch(name)
    }
    assert read
    assert read <= declared, f"config/settings.py lacks {sorted(read - declared)}"


def test_no_setting_is_documented_that_does_not_exist() -> None:
    named = set(re.findall(r"`(GPUPOOL_[A-Z_]+)`", text("operations.md")))
    assert named <= settings_read(), f"nothing reads {sorted(named - settings_read())}"


def test_every_verb_of_run_is_documented() -> None:
    verbs = [
        str(key.value)
        for node in nodes(parsed(ROOT / "tools" / "verbs.py"))
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "VERBS"
        for key in getattr(node.value, "keys", [])
    ]
    assert verbs
    missing = [verb for verb in verbs if f"`./run {verb}" not in text("operations.md")]
    assert not missing, f"docs/operations.md lacks {missing}"


def test_every_reason_is_documented() -> None:
    documented = text("reasons.md")
    missing = sorted(code.value for code in ReasonCode if f"`{code.value}`" not in documented)
    assert not missing, f"docs/reasons.md lacks {missing}"


def test_every_state_is_documented() -> None:
    documented = "\n".join(path.read_text() for path in Path(ROOT / "docs").glob("*.md"))
    missing = sorted({str(state) for table in tables() for state in table if f"`{state}`" not in documented})
    assert not missing, f"no page of docs/ explains the states {missing}"


def api_paths() -> set[str]:
    """Return every path below /api/v1/, with {name} for its parameters."""
    paths: set[str] = set()

    def walk(patterns: list[URLPattern | URLResolver], prefix: str) -> None:
        for entry in patterns:
            path = prefix + str(entry.pattern)
            if isinstance(entry, URLResolver):
                walk(entry.url_patterns, path)
            else:
                paths.add("/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path))

    walk(get_resolver().url_patterns, "")
    return {path for path in paths if path.startswith("/api/v1/")}


def test_every_endpoint_is_documented() -> None:
    documented = text("api.md")
    missing = sorted(path for path in api_paths() if f"`{path}`" not in documented and path not in documented)
    assert not missing, f"docs/api.md lacks {missing}"
