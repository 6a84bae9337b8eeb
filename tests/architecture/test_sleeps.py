"""Test that tests wait for events. A sleep or a limit on elapsed time fails on a slow machine.

Use `tests/waiting.py`, `FakeEdge.until` and `AgentProcess.after_steps` instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.sources import modules, nodes

SLEEPS = {"time.sleep", "asyncio.sleep", "sleep"}
CLOCKS = {"time.monotonic", "time.perf_counter", "monotonic", "perf_counter"}
LONGEST_POLL_SECONDS = 0.5
# The places that sleep for a time, with the reason. At most six.
PAUSES = {
    "tests/agent/test_long_running_agent.py:send_str": "a slow socket: sending each frame takes some time",
    "tests/agent/test_shutdown.py:test_an_agent_interrupted_during_its_start_can_be_ended": (
        "interrupts a start at various times, because the start reports no steps"
    ),
    "tests/house/test_slow_senders.py:pause_of_slow_network": "the server measures the pauses of a client",
    "tests/house/test_bench_shutdown.py:test_an_interrupt_of_the_process_group_ends_all_processes": (
        "the time between two interrupts of an impatient user"
    ),
    "tests/portal/edge/conftest.py:slow": "a notebook that writes for a minute",
}


def parents(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    return {child: node for node in nodes(tree) for child in ast.iter_child_nodes(node)}


def enclosing(node: ast.AST, above: dict[ast.AST, ast.AST]) -> tuple[str, list[ast.AST]]:
    """Return the name of the function around the node, and the loops of that function around the node."""
    loops = []
    while node in above:
        node = above[node]
        if isinstance(node, (ast.While, ast.For)):
            loops.append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return node.name, loops
    return "", loops


def ends_on_an_event(loop: ast.AST) -> bool:
    """Return True if the loop ends once a condition is true, i.e. if it polls."""
    if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
        return True
    return any(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))


def plain_sleeps(path: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (place, line) of each sleep, except sleeps in polling loops and `sleep(0)`."""
    above = parents(tree)
    for node in nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS:
            seconds = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            function, loops = enclosing(node, above)
            too_long = isinstance(seconds, (int, float)) and seconds > LONGEST_POLL_SECONDS
            if seconds != 0 and (too_long or not any(map(ends_on_an_event, loops))):
                yield f"{path}:{function}", node.lineno


def limits_on_elapsed_time(path: str, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (place, line) of each assertion outside a loop that an elapsed time is below a limit."""
    above = parents(tree)
    for node in nodes(tree):
        if not isinstance(node, ast.Assert) or enclosing(node, above)[1]:
            continue
        for comparison in (part for part in ast.walk(node.test) if isinstance(part, ast.Compare)):
            sides = [comparison.left, *comparison.comparators]
            for left, operator, right in zip(sides, comparison.ops, sides[1:], strict=False):
                smaller = left if isinstance(operator, (ast.Lt, ast.LtE)) else right
                is_order = isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
                if is_order and any(ast.unparse(part) in CLOCKS for part in ast.walk(smaller)):
                    yield f"{path}:{enclosing(node, above)[0]}", node.lineno


def test_tests_sleep_only_in_the_listed_places() -> None:
    found = [sleep for path, tree in modules("tests") for sleep in plain_sleeps(path, tree)]
    assert {place for place, _ in found} == PAUSES.keys(), sorted(found)
    assert len(PAUSES) <= 6


def test_no_test_limits_the_elapsed_time() -> None:
    assert [limit for path, tree in modules("tests") for limit in limits_on_elapsed_time(path, tree)] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("time.sleep(1)", 1),
        ("for n in range(3):\n    time.sleep(0.1)", 1),
        ("while not ready():\n    time.sleep(0.1)", 0),
        ("while not ready():\n    time.sleep(2)", 1),
        ("while True:\n    time.sleep(0.1)", 1),
        ("for n in range(100):\n    if ready():\n        break\n    time.sleep(0.1)", 0),
        ("time.sleep(0)", 0),
    ],
)
def test_a_sleep_is_a_poll_if_its_loop_ends_on_an_event(source: str, count: int) -> None:
    assert len(list(plain_sleeps("test.py", ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("assert time.monotonic() - began < 5", 1),
        ("assert 1.0 <= time.monotonic() - began < 5", 1),
        ("assert 5 > time.monotonic() - began", 1),
        ("assert time.monotonic() - began >= 1.0", 0),
        ("while not ready():\n    assert time.monotonic() < deadline", 0),
    ],
)
def test_only_an_upper_limit_on_elapsed_time_is_rejected(source: str, count: int) -> None:
    assert len(list(limits_on_elapsed_time("test.py", ast.parse(source)))) == count
