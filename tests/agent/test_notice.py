"""Test that a run gets the same notice of a coming stop over HTTP as in its notice file."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

LARGEST_SHIM_KIB = 15 * 1024
POLL_NOTICE = """
import json, os, time, urllib.error, urllib.request
def ask(url=os.environ["GPUPOOL_NOTICE_URL"]):
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            time.sleep(0.02)
print("first", *ask(), flush=True)
print("elsewhere", *ask(os.environ["GPUPOOL_NOTICE_URL"][:-1] + "/"), flush=True)
while ask()[0] == 204:
    time.sleep(0.02)
status, body = ask()
assert json.loads(body) == json.load(open(os.environ["GPUPOOL_NOTICE"]))
print("served", status, json.loads(body)["code"], flush=True)
while ask()[0] == 200:
    time.sleep(0.02)
print("withdrawn", flush=True)
"""


async def poll_notice(edge: FakeEdge, agent: AgentProcess, number: int, network: str = "") -> list[str]:
    run = f"run-{number}"
    await edge.want(job(f"python3 -c {shlex.quote(POLL_NOTICE)}", generation=number))
    await edge.until(lambda: "elsewhere" in edge.log(run))
    if network == "host":  # wait for the rules that stop this workload from connecting to other users' ports
        await agent.after_steps("network_rules", 1)
    await edge.change(run, verb="notice", code="evicted_for_guarantee", stop_at=2e9)
    await edge.until(lambda: "served" in edge.log(run))
    await edge.change(run, verb="start")
    ended = await edge.until_state(run, "ended")
    assert (ended.outcome, ended.exit_code) == ("finished", 0)
    await edge.until(lambda: "withdrawn" in edge.log(run))
    return edge.log(run).splitlines()


EXPECTED_OUTPUT = ["first 204", "elsewhere 404", "served 200 evicted_for_guarantee", "withdrawn"]


async def test_a_notice_is_served_over_http(edge: FakeEdge, agent: AgentProcess) -> None:
    assert [line.strip() for line in await poll_notice(edge, agent, 1)] == EXPECTED_OUTPUT


@pytest.mark.sandbox
@pytest.mark.parametrize("network", ["private", "host"])
async def test_a_notice_is_served_over_http_inside_a_sandbox(
    edge: FakeEdge, make_agent: MakeAgent, network: str
) -> None:
    agent = await make_agent("--network", network, launcher="bubblewrap")
    first, second = await asyncio.gather(*(poll_notice(edge, agent, number, network) for number in (1, 2)))
    assert [line.strip() for line in first] == [line.strip() for line in second] == EXPECTED_OUTPUT


async def test_silent_connections_do_not_block_the_shim_or_use_its_memory(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    silent = (
        "import os, socket, time\n"
        "from urllib.parse import urlsplit\n"
        "place = urlsplit(os.environ['GPUPOOL_NOTICE_URL'])\n"
        "kept = [socket.create_connection((place.hostname, place.port)) for _ in range(40)]\n"
        "print('begun', flush=True)\n"
        "time.sleep(300)\n"
    )
    await edge.want(job(f'python3 -c "{silent}"'))
    await edge.until(lambda: "begun" in edge.log("run-1"))
    memory = Path(f"/proc/{agent.shim('run-1')['pid']}/status").read_text()
    assert int(memory.split("VmRSS:")[1].split()[0]) < LARGEST_SHIM_KIB
    await edge.change("run-1", verb="stop", code="cancelled")
    assert (await edge.until_state("run-1", "ended")).outcome == "cancelled"


SPLIT_REQUESTS = """
import os, socket, sys, time
from urllib.parse import urlsplit
place = urlsplit(os.environ["GPUPOOL_NOTICE_URL"])
def line():
    while True:
        try:
            return socket.create_connection((place.hostname, place.port))
        except OSError:
            time.sleep(0.05)
def ask(*pieces):
    with line() as to:
        for piece in pieces:
            to.sendall(piece.encode())
            time.sleep(0.3)
        return to.makefile("rb").read().split(b"\\r\\n")[0].decode() or "hung up"
head = f"GET {place.path} HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n"
for at in (3, 10, len(head) - 2):
    print("in two", ask(head[:at], head[at:]), flush=True)
print("bytes", ask(*head[:5], head[5:]), flush=True)
print("elsewhere", ask("GET / HT", "TP/1.1\\r\\n\\r\\n"), flush=True)
print("too long", ask("GET " + "x" * 9000), flush=True)
with line() as half:
    half.sendall(head[:-2].encode())
    half.shutdown(socket.SHUT_WR)
    print("half", half.recv(100).split(b"\\r\\n")[0].decode(), flush=True)
began = time.monotonic()
print("slow", ask(head[:-2]), time.monotonic() - began > 4, flush=True)
"""


@pytest.mark.long
async def test_a_request_may_arrive_in_pieces_but_must_end_in_time(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await edge.want(job(f"python3 -c {shlex.quote(SPLIT_REQUESTS)}"))
    assert (await edge.until_state("run-1", "ended")).exit_code == 0
    no_content = "HTTP/1.1 204 No Content"
    assert [line.strip() for line in (await agent.printed("run-1")).splitlines()] == [
        *[f"in two {no_content}"] * 3,
        f"bytes {no_content}",
        "elsewhere HTTP/1.1 404 Not Found",
        "too long HTTP/1.1 400 Bad Request",
        "half HTTP/1.1 400 Bad Request",
        "slow hung up True",
    ]
