"""Test agents and hosts: identity, keys, frames, inventory, silent hosts, repairs and logs."""

from __future__ import annotations

import base64
import datetime as dt
import random
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.protocol import JoinRequest, LogChunk, Observed, Proof, RenewRequest, RunSeen, UnitSeen
from agent.server import host_key
from benchmarks.plan_verifier import violations
from scheduler import services
from scheduler.coordination import leases
from scheduler.core.planner import plan
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import core_values, engine, snapshot
from scheduler.models import Allocation, Gpu, GpuStateChange, Host, HostStateChange, Run, Unit, Workload
from scheduler.runs import logs
from scheduler.services.host_credentials import CREDENTIAL_TTL
from scheduler.services.hosts import quarantine_gpu
from scheduler.services.powered_off import attest_powered_off
from scheduler.sweeps import maintenance, silent_hosts, stuck_processes
from scheduler.sync import agent_api
from scheduler.sync.agent_rejections import AgentRejected
from scheduler.sync.host_inventory import retire_missing_gpu
from tests.fakes import FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.world import World, units_of

SECOND = dt.timedelta(seconds=1)
MINUTE = dt.timedelta(minutes=1)


def start(world: World, agents: list[FakeAgent], at: dt.datetime) -> None:
    """Run one planning cycle and sync each agent twice, so that placed work runs."""
    engine.run_cycle("test", at)
    for agent in agents * 2:
        agent.sync(at)


def agents_of(world: World, *names: str) -> list[FakeAgent]:
    return [FakeAgent.of(world.hosts[name]) for name in names]


# -- identity ------------------------------------------------------------------------------------------------


def join(world: World, token: str, at: dt.datetime, host: str = "alpha") -> str:
    return agent_api.join(JoinRequest(1, token, host, "new instance", "boot"), at).credential


def test_an_agent_joins_with_a_token_and_is_known_by_its_credential(world: World) -> None:
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)
    credential = join(world, token, world.now + 14 * MINUTE)
    assert agent_api.authenticate(credential, world.now + MINUTE) == world.hosts["alpha"].pk
    assert agent_api.authenticate(credential + "x", world.now) is None
    assert agent_api.authenticate(credential, world.now + dt.timedelta(days=2)) is None
    for nonsense in ("", "gpa.1.", "gpa.999999999999999999.x", "gpa.²³.x", "a.b.c.d", "gpa.0.x"):
        assert agent_api.authenticate(nonsense, world.now) is None


@pytest.mark.parametrize(
    ("late", "host", "spoil", "said"),
    [
        (16 * MINUTE, "alpha", "", "older than 15 minutes"),
        (MINUTE, "beta", "", "made for another host"),
        (MINUTE, "alpha", "x", "not known"),
    ],
)
def test_an_invalid_join_token_is_rejected_with_a_reason(
    world: World, late: dt.timedelta, host: str, spoil: str, said: str
) -> None:
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)
    with pytest.raises(AgentRejected, match=said):
        join(world, token + spoil, world.now + late, host)


def test_a_join_token_never_begins_with_a_dash(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_urlsafe", lambda size: "-j0DAZTOjPLzU")
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)
    assert not token.startswith("-")


def test_a_new_join_token_invalidates_the_previous_one(world: World) -> None:
    first = services.issue_join_token(world.hosts["alpha"], now=world.now)
    services.issue_join_token(world.hosts["alpha"], now=world.now + SECOND)
    with pytest.raises(AgentRejected):
        join(world, first, world.now + MINUTE)


def test_a_credential_is_renewed_after_two_thirds_and_a_lost_frame_does_no_harm(world: World) -> None:
    host = world.hosts["alpha"]
    old = join(world, services.issue_join_token(host, now=world.now), world.now)
    assert agent_api.desired(host.pk, world.now).credential == ""
    later = world.now + CREDENTIAL_TTL * 0.7
    new = agent_api.desired(host.pk, later).credential
    assert new and new == agent_api.desired(host.pk, later + MINUTE).credential
    assert agent_api.authenticate(old, later) == host.pk, "the old one is good until the new one is used"
    assert agent_api.authenticate(new, later + MINUTE) == host.pk
    assert agent_api.authenticate(old, later + 2 * MINUTE) is None
    assert agent_api.authenticate(new, world.now + CREDENTIAL_TTL * 1.5) == host.pk


def test_a_revoked_agent_is_rejected_at_once_even_on_an_open_connection(world: World) -> None:
    host = world.hosts["alpha"]
    (agent,) = agents_of(world, "alpha")
    credential = join(world, services.issue_join_token(host, now=world.now), world.now)
    services.revoke_credential(host, now=world.now)
    assert agent_api.authenticate(credential, world.now) is None
    with pytest.raises(AgentRejected, match="revoked"):
        agent.sync(world.now)
    with pytest.raises(AgentRejected, match="revoked"):
        agent_api.desired(host.pk, world.now)


def test_no_work_is_placed_on_a_host_whose_credential_is_revoked(world: World) -> None:
    host = world.hosts["alpha"]
    Host.objects.filter(pk=host.pk).update(credential_hash="known")

    def takes_work() -> bool:
        return next(
            host_row for host_row in snapshot.take_snapshot(None, world.now).hosts if host_row.name == "alpha"
        ).schedulable

    assert takes_work()
    services.revoke_credential(host, now=world.now)
    assert not takes_work()
    change = HostStateChange.objects.filter(host=host).latest("at", "pk")
    assert (change.lease_state, change.reason) == ("suspect", "its agent's credential was revoked")


def test_another_agent_instance_is_rejected_and_shown(world: World) -> None:
    (agent,) = agents_of(world, "alpha")
    agent.instance = "another"
    with pytest.raises(AgentRejected, match="another agent"):
        agent.sync(world.now)
    refused = Host.objects.get(pk=agent.host.pk).refused_agent
    assert refused is not None and refused["instance"] == "another" and "alpha" in refused["reason"]


def test_a_clone_is_rejected_while_the_original_reports_and_a_reboot_is_accepted(world: World) -> None:
    (agent,) = agents_of(world, "alpha")
    agent.sync(world.now)
    clone = FakeAgent.of(world.hosts["alpha"])
    clone.boot_id = "another boot"
    with pytest.raises(AgentRejected, match="clone"):
        clone.sync(world.now + 5 * SECOND)
    agent.sync(world.now + 6 * SECOND)
    assert Host.objects.get(pk=agent.host.pk).refused_agent["code"] == "agent_copy"
    clone.sync(world.now + 90 * SECOND)
    host = Host.objects.get(pk=agent.host.pk)
    assert (host.boot_id, host.refused_agent) == ("another boot", None), (
        "it was a reboot: nobody has to choose"
    )
    with pytest.raises(AgentRejected, match="clone"):
        agent.sync(world.now + 91 * SECOND)
    clone.sync(world.now + 92 * SECOND)
    assert Host.objects.get(pk=agent.host.pk).refused_agent["boot_id"] == agent.boot_id, "and that was none"


def test_another_boot_is_accepted_only_after_the_hosts_old_work_must_have_ended(world: World) -> None:
    """A host that is cut off may run its work for lease 30 + grace 30 + margin 10 s."""
    (agent,) = agents_of(world, "alpha")
    agent.sync(world.now)
    agent.boot_id = "another boot"
    with pytest.raises(AgentRejected, match="clone"):
        agent.sync(world.now + 69 * SECOND)
    agent.sync(world.now + 71 * SECOND)


def test_an_agent_with_an_outdated_copy_of_the_state_folder_is_rejected_permanently(
    world: World,
) -> None:
    (agent,) = agents_of(world, "alpha")

    def frame(start: str, *before: str) -> Observed:
        return replace(agent.observed(), start=start, starts_before=list(before))

    agent.sync(world.now, frame("first"))
    agent.sync(world.now + SECOND, frame("second", "first"))  # the agent was restarted
    for seconds in (2, 600, 6000):
        with pytest.raises(AgentRejected, match="copy of the state folder of alpha") as refused:
            agent.sync(world.now + seconds * SECOND, frame("copy", "first"))
        assert not refused.value.retry
        with pytest.raises(AgentRejected, match="copy of the state folder of alpha"):
            agent.sync(
                world.now + seconds * SECOND, frame("")
            )  # a frame that names no start is rejected as well
        agent.sync(world.now + seconds * SECOND, frame("second", "first"))
    shown = Host.objects.get(pk=agent.host.pk).refused_agent
    assert shown is not None and shown["code"] == "agent_copy"
    agent.sync(world.now + 7000 * SECOND, frame("fourth", "second", "a start that never reached the server"))


def test_a_copy_is_accepted_after_it_joins_with_a_new_token(world: World) -> None:
    (agent,) = agents_of(world, "alpha")
    agent.sync(world.now, replace(agent.observed(), start="original"))
    copy = FakeAgent.of(world.hosts["alpha"])
    with pytest.raises(AgentRejected, match="copy"):
        copy.sync(world.now, replace(copy.observed(), start="copy"))
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)
    join(world, token, world.now)
    copy.instance, copy.boot_id = "new instance", "boot"
    copy.sync(world.now + SECOND, replace(copy.observed(), start="copy"))
    with pytest.raises(AgentRejected, match="another agent has joined as alpha"):
        agent.sync(world.now + 2 * SECOND, replace(agent.observed(), start="original"))


# -- keys ----------------------------------------------------------------------------------------------------


class Key:
    """A host's key pair, like that of ``agent.server.host_key``."""

    def __init__(self) -> None:
        self.private = Ed25519PrivateKey.generate()
        self.public = base64.b64encode(self.private.public_key().public_bytes_raw()).decode()

    def sign(self, text: bytes) -> str:
        return base64.b64encode(self.private.sign(text)).decode()

    def join(
        self, world: World, at: dt.datetime, signs: Key | None = None, token: str = "", instance: str = "i"
    ) -> str:
        token = token or services.issue_join_token(world.hosts["alpha"], now=at)
        signature = (signs or self).sign(host_key.join_message("alpha", token))
        return agent_api.join(
            JoinRequest(1, token, "alpha", instance, "boot", self.public, signature), at
        ).credential


def test_a_public_key_is_registered_only_with_a_signature_of_its_private_key(world: World) -> None:
    own_key, other_key = Key(), Key()
    with pytest.raises(AgentRejected, match="private half of public_key"):
        other_key.join(world, world.now, signs=own_key)
    assert Host.objects.get(name="alpha").public_key == ""
    own_key.join(world, world.now)
    assert Host.objects.get(name="alpha").public_key == own_key.public


@pytest.mark.parametrize("was_there", [False, True], ids=["new host", "host that spoke before"])
def test_an_agent_that_lost_the_join_answer_may_join_again_with_the_same_token(
    world: World, was_there: bool
) -> None:
    if not was_there:
        Host.objects.filter(name="alpha").update(last_sync_at=None)
    agent = FakeAgent.of(world.hosts["alpha"])
    agent.instance, agent.boot_id = "i", "boot"
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)
    key = Key()
    lost = key.join(world, world.now, token=token)
    other = Key()
    for who, instance in ((other, "i"), (key, "another folder"), (other, "another folder")):
        with pytest.raises(AgentRejected, match="used before"):
            who.join(world, world.now + SECOND, token=token, instance=instance)
    credential = key.join(world, world.now + SECOND, token=token)
    assert agent_api.authenticate(lost, world.now + SECOND) is None
    assert agent_api.authenticate(credential, world.now + SECOND) == world.hosts["alpha"].pk
    agent_api.sync(world.hosts["alpha"].pk, agent.observed(), world.now + MINUTE)
    with pytest.raises(AgentRejected, match="used before"):
        key.join(world, world.now + 2 * MINUTE, token=token)
    assert agent_api.authenticate(credential, world.now + 2 * MINUTE) == world.hosts["alpha"].pk


def test_a_join_is_not_repeated_without_a_key_or_too_late_or_after_a_revocation(
    world: World,
) -> None:
    host, key = world.hosts["alpha"], Key()
    token = services.issue_join_token(host, now=world.now)
    join(world, token, world.now)
    with pytest.raises(AgentRejected, match="used before"):
        join(world, token, world.now)
    token = services.issue_join_token(host, now=world.now)
    key.join(world, world.now, token=token)
    with pytest.raises(AgentRejected, match="older than 15 minutes"):
        key.join(world, world.now + 15 * MINUTE, token=token)
    services.revoke_credential(Host.objects.get(pk=host.pk), now=world.now)
    with pytest.raises(AgentRejected, match="used before"):
        key.join(world, world.now + SECOND, token=token)


def test_a_host_with_a_key_gets_a_new_credential_only_for_a_signed_challenge(world: World) -> None:
    host, key = world.hosts["alpha"], Key()
    old = key.join(world, world.now)
    assert agent_api.desired(host.pk, world.now).challenge == ""
    later = world.now + CREDENTIAL_TTL * 0.7
    asked = agent_api.desired(host.pk, later)
    assert asked.challenge and asked.credential == "", "not given to whoever has the old one"
    assert agent_api.desired(host.pk, later + SECOND).challenge == asked.challenge, "one signature is enough"
    right = Proof(asked.challenge, key.sign(host_key.renewal_message(asked.challenge)))
    for wrong, said in (
        (
            Proof(asked.challenge, Key().sign(host_key.renewal_message(asked.challenge))),
            "not one made with the key",
        ),
        (Proof(asked.challenge, "no base64"), "not one made with the key"),
        (Proof(asked.challenge.replace("gpc.", "gpc.1"), right.signature), "not of this host's"),
        (Proof("gpc.1.²³.x", right.signature), "not of this host's"),
        (Proof("gpc.1.{}.x".format("9" * 5000), right.signature), "not of this host's"),
        (Proof("", right.signature), "not of this host's"),
    ):
        with pytest.raises(AgentRejected, match=said):
            agent_api.redeem_challenge(host.pk, wrong, later)
    with pytest.raises(AgentRejected, match="too old"):
        agent_api.redeem_challenge(host.pk, right, later + 11 * MINUTE)
    new, expires = agent_api.redeem_challenge(host.pk, right, later)
    assert expires == (later + CREDENTIAL_TTL).timestamp()
    assert agent_api.authenticate(new, later) == host.pk and agent_api.authenticate(old, later) is None
    with pytest.raises(AgentRejected, match="not of this host's"):
        agent_api.redeem_challenge(
            host.pk, right, later
        )  # repeated: the challenge was for the previous credential


def test_a_host_that_was_off_for_days_renews_with_its_key_unless_it_is_revoked(world: World) -> None:
    host, key = world.hosts["alpha"], Key()
    old = key.join(world, world.now)
    late = world.now + dt.timedelta(days=5)
    assert agent_api.authenticate(old, late) is None

    def renew(at: dt.datetime, credential: str = old, signs: Key = key) -> str:
        challenge = agent_api.renew(credential, RenewRequest(1), at).challenge
        signed = RenewRequest(1, challenge, signs.sign(host_key.renewal_message(challenge)))
        return agent_api.renew(credential, signed, at).credential

    for late_or_strange in (
        lambda: renew(late, old + "x"),
        lambda: renew(late, signs=Key()),
        lambda: renew(world.now + dt.timedelta(days=40)),
    ):
        with pytest.raises(AgentRejected):
            late_or_strange()
    new = renew(late)
    assert agent_api.authenticate(new, late) == host.pk
    services.revoke_credential(host, now=late)
    with pytest.raises(AgentRejected):
        renew(late, new)


def test_a_renewal_may_be_repeated_until_the_host_has_reported(world: World) -> None:
    key = Key()
    old = key.join(world, world.now)
    late = world.now + dt.timedelta(days=5)

    def renew(at: dt.datetime, signs: Key = key) -> str:
        challenge = agent_api.renew(old, RenewRequest(1), at).challenge
        signed = RenewRequest(1, challenge, signs.sign(host_key.renewal_message(challenge)))
        return agent_api.renew(old, signed, at).credential

    lost = renew(late)
    assert renew(late + SECOND) == lost, "the one that counts by now"
    assert renew(late + CREDENTIAL_TTL * 2) == lost, "also where that has run out meanwhile"
    with pytest.raises(AgentRejected, match="not one made with the key"):
        renew(late + CREDENTIAL_TTL * 2, signs=Key())
    spoke = late + CREDENTIAL_TTL * 2 + SECOND
    assert agent_api.authenticate(lost, spoke) == world.hosts["alpha"].pk
    Host.objects.filter(name="alpha").update(last_sync_at=spoke)
    with pytest.raises(AgentRejected, match="not of this host's last credential"):
        renew(spoke + SECOND)


def test_a_copy_of_the_state_folder_cannot_renew_while_the_hosts_credential_is_valid(world: World) -> None:
    """A renewal would take effect at once and disconnect the host's own agent."""
    host, key = world.hosts["alpha"], Key()
    good = key.join(world, world.now)
    for at in (world.now, world.now + CREDENTIAL_TTL * 0.9):
        with pytest.raises(AgentRejected, match="not of this host's last credential"):
            agent_api.renew(good, RenewRequest(1), at)
        challenge = agent_api.desired(host.pk, at).challenge
        signed = RenewRequest(1, challenge or "gpc.1.1.x", key.sign(host_key.renewal_message(challenge)))
        with pytest.raises(AgentRejected):
            agent_api.renew(good, signed, at)
        assert agent_api.authenticate(good, at) == host.pk
    assert agent_api.renew(good, RenewRequest(1), world.now + CREDENTIAL_TTL).challenge


def test_an_unknown_protocol_version_is_rejected_with_the_supported_version(world: World) -> None:
    (agent,) = agents_of(world, "alpha")
    with pytest.raises(AgentRejected, match="version: 2; allowed: 1"):
        agent.sync(world.now, replace(agent.observed(), version=2))


# -- frames --------------------------------------------------------------------------------------------------


def test_reports_of_unknown_runs_and_of_other_generations_are_ignored(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    run = Run.objects.get()
    stale = RunSeen(str(run.public_id), run.generation - 1, "ended", outcome="finished", exit_code=0)
    unknown = RunSeen("0" * 32, 1, "running")
    nonsense = RunSeen("not an id", 1, "running")
    agent.sync(world.now + SECOND, replace(agent.observed(), runs=[stale, unknown, nonsense]))
    workload.refresh_from_db()
    assert workload.state == "running"


def test_a_run_that_its_agent_stops_reporting_is_lost_after_a_delay(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    without = replace(agent.observed(), runs=[])
    agent_api.sync(agent.host.pk, without, world.now + SECOND)
    agent_api.sync(agent.host.pk, without, world.now + 5 * SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "running"
    agent_api.sync(agent.host.pk, without, world.now + 12 * SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "running", (
        "two frames so far apart are what a clock can do that is set"
    )
    agent_api.sync(agent.host.pk, without, world.now + 13 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code, workload.lost_attempts) == (
        "queued",
        ReasonCode.HOST_LOST,
        1,
    )


def test_a_reboot_ends_what_ran_before_it(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    agent.boot_id, agent.runs = "next boot", {}
    agent.sync(world.now + 2 * MINUTE)
    workload.refresh_from_db()
    assert workload.state == "queued" and Allocation.objects.get().end_code == ReasonCode.HOST_LOST


def test_a_wrong_host_clock_cannot_move_an_end_outside_the_servers_observations(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    for at, hours, expected in ((world.now, -1, 10), (world.now + MINUTE, 1, 20)):
        workload = job(world, world.vision, 1, at, pool=world.static, models_wanted=[])
        start(world, [agent], at)
        agent.sync(at + 10 * SECOND)
        agent.end(agent.running[0], at + 15 * SECOND + dt.timedelta(hours=hours))
        agent.sync(at + 20 * SECOND)
        agent.sync(at + 20 * SECOND)
        held = Allocation.objects.get(workload=workload)
        assert held.period.upper == at + expected * SECOND


def test_a_failed_job_is_retried_with_growing_delays_up_to_its_limit(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[], most_retries=2)
    at, waits = world.now, []
    for _ in range(3):
        start(world, [agent], at)
        agent.end(agent.running[0], at, outcome="failed", exit_code=3)
        agent.sync(at)
        agent.sync(at)
        workload.refresh_from_db()
        waits.append((workload.not_before - at).total_seconds() if workload.not_before else None)
        at = workload.not_before or at
    assert waits[:2] == [15, 30]
    assert (workload.state, workload.outcome, workload.attempt) == ("ended", "failed", 3)
    assert workload.outcome_numbers == {"attempt": 3, "exit_code": 3}


def test_lost_duplicated_and_reordered_frames_converge_to_the_same_end(world: World) -> None:
    rng = random.Random(7)
    agents = agents_of(world, "alpha", "beta")
    workloads = [job(world, rng.choice(world.teams), rng.choice([1, 2, 4, 8]), world.now) for _ in range(15)]
    late: list[tuple[FakeAgent, Observed]] = []
    at = world.now
    for step in range(400):
        at += 2 * SECOND
        for agent in agents:
            _sync_over_a_lossy_connection(rng, agent, at, late)
        if late and rng.random() < 0.3:
            agent, frame = late.pop(rng.randrange(len(late)))
            agent_api.sync(agent.host.pk, frame, at)
        taken = snapshot.take_snapshot(None, at)
        assert (
            step % 4
            or violations(taken, plan(taken, core_values.epoch_seconds(at)), core_values.epoch_seconds(at))
            == []
        )
        engine.run_cycle("test", at)
        if step == 20:
            services.cancel_workload(workloads[-1], now=at)
        if not Workload.objects.exclude(state="ended").exists():
            break
    for workload in workloads:
        workload.refresh_from_db()
        assert workload.state == "ended", (workload.reason_code, workload.reason_numbers)
    assert not Allocation.objects.filter(period__upper_inf=True).exists()
    assert all(len(seen) == 1 for seen in _attempts_by_workload().values()), "no attempt was started twice"


def _sync_over_a_lossy_connection(
    rng: random.Random, agent: FakeAgent, at: dt.datetime, late: list[tuple[FakeAgent, Observed]]
) -> None:
    """End some runs and send one frame. It arrives once, twice or ``late``, or its answer is lost."""
    for run in agent.running:
        if rng.random() < 0.2:
            agent.end(run, at, outcome=rng.choice(["finished", "finished", "failed"]))
    frame = agent.observed()
    fate = rng.random()
    if fate < 0.2:
        late.append((agent, frame))  # arrives later, after newer frames
    elif fate < 0.4:
        agent_api.sync(agent.host.pk, frame, at)  # the response is lost
    else:
        for _ in range(rng.choice([1, 1, 2])):
            agent.sync(at, frame)


def _attempts_by_workload() -> dict[tuple[int, int], list[int]]:
    attempts: dict[tuple[int, int], list[int]] = {}
    for run in Run.objects.all():
        attempts.setdefault((run.workload_id, run.attempt), []).append(run.pk)
    return attempts


# -- inventory -----------------------------------------------------------------------------------------------


def test_a_new_geometry_is_applied_once_the_gpu_is_free(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    job(world, world.vision, 4, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    gpu = agent.inventory.gpus[0]
    halves = [UnitSeen(f"MIG-{i}", "3g.20gb", i * 420, 420, 20_000) for i in range(2)]
    agent.inventory = replace(agent.inventory, gpus=[replace(gpu, units=halves), *agent.inventory.gpus[1:]])
    agent.sync(world.now + SECOND)
    row = Gpu.objects.get(uuid=gpu.uuid)
    assert row.repair_state == "quarantined" and row.units.filter(retired_at=None).count() == 1
    agent.end(agent.running[0], world.now + 2 * SECOND)
    agent.sync(world.now + 2 * SECOND)
    agent.sync(world.now + 3 * SECOND)
    row.refresh_from_db()
    assert row.repair_state == "well"
    assert [u.profile for u in row.units.filter(retired_at=None)] == ["3g.20gb"] * 2
    agent.inventory = replace(agent.inventory, gpus=[gpu, *agent.inventory.gpus[1:]])
    agent.sync(world.now + 4 * SECOND)
    assert row.units.get(retired_at=None).uuid == gpu.uuid and Unit.objects.filter(gpu=row).count() == 3


def test_a_missing_gpu_is_retired_and_reused_when_it_is_reported_again(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    all_gpus = agent.inventory
    agent.inventory = replace(all_gpus, gpus=all_gpus.gpus[:3])
    agent.sync(world.now)
    assert len(units_of(world.hosts["delta"])) == 3
    agent.inventory = all_gpus
    agent.sync(world.now + SECOND)
    assert (
        len(units_of(world.hosts["delta"])) == 4
        and Gpu.objects.filter(host=world.hosts["delta"]).count() == 4
    )


def test_a_missing_gpu_keeps_its_state_until_it_is_reported_again_or_retired_by_an_operator(
    world: World,
) -> None:
    (agent,) = agents_of(world, "delta")
    all_gpus = agent.inventory
    gpu = Gpu.objects.get(uuid=all_gpus.gpus[3].uuid)
    assert quarantine_gpu(gpu, reason="fell off the bus", now=world.now)
    agent.inventory = replace(all_gpus, gpus=all_gpus.gpus[:3])
    agent.sync(world.now + SECOND)
    agent.sync(world.now + 2 * SECOND)
    gpu.refresh_from_db()
    assert (gpu.missing_since, gpu.retired_at) == (world.now + SECOND, world.now + SECOND)
    assert (gpu.repair_state, gpu.state_reason) == ("quarantined", "fell off the bus"), (
        "it comes back as what it was"
    )
    last = GpuStateChange.objects.filter(gpu=gpu).order_by("pk")
    assert [row.reason for row in last] == ["fell off the bus", "its host does not report it any more"]
    agent.inventory = all_gpus
    agent.sync(world.now + 3 * SECOND)
    gpu.refresh_from_db()
    assert (gpu.missing_since, gpu.retired_at, gpu.repair_state) == (None, None, "quarantined")
    assert last.reverse()[0].reason == "its host reports it again"
    assert not retire_missing_gpu(gpu), "it is there"
    agent.inventory = replace(all_gpus, gpus=all_gpus.gpus[:3])
    agent.sync(world.now + 4 * SECOND)
    assert retire_missing_gpu(gpu)
    agent.sync(world.now + 5 * SECOND)
    gpu.refresh_from_db()
    assert gpu.missing_since is None and gpu.retired_at == world.now + 4 * SECOND


def test_a_held_gpu_that_disappears_is_missing_at_once_and_cannot_be_retired(
    world: World,
) -> None:
    (agent,) = agents_of(world, "delta")
    job(world, world.vision, 4, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    all_gpus = agent.inventory
    gpu = Gpu.objects.get(uuid=all_gpus.gpus[3].uuid)
    agent.inventory = replace(all_gpus, gpus=all_gpus.gpus[:3])
    agent.sync(world.now + SECOND)
    gpu.refresh_from_db()
    assert (gpu.repair_state, gpu.missing_since, gpu.retired_at) == ("quarantined", world.now + SECOND, None)
    assert not retire_missing_gpu(gpu)
    agent.end(agent.running[0], world.now + 2 * SECOND)
    agent.sync(world.now + 2 * SECOND)
    agent.sync(world.now + 3 * SECOND)
    gpu.refresh_from_db()
    assert gpu.retired_at is not None and gpu.missing_since == world.now + SECOND
    agent.inventory = all_gpus
    agent.sync(world.now + 4 * SECOND)
    gpu.refresh_from_db()
    assert (gpu.repair_state, gpu.missing_since) == ("well", None)
    reasons = list(GpuStateChange.objects.filter(gpu=gpu).order_by("pk").values_list("reason", flat=True))
    assert reasons == ["its host does not report it any more", "its host reports it again"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"uuid": "GPU-alpha-0"}, "is a GPU of host alpha"),
        ({"index": 1}, "same index or uuid twice"),
        ({"units": [UnitSeen("a", "x", 0, 800, 1), UnitSeen("b", "x", 799, 41, 1)]}, "do not overlap"),
        ({"units": [UnitSeen("a", "x", 0, 841, 1)]}, "within 0 to 840"),
        (
            {"units": [UnitSeen("a", "x", 0, 100, 1), UnitSeen("a", "x", 100, 100, 1)]},
            "same uuid of a unit twice",
        ),
        ({"model": ""}, "model ''"),
        ({"memory_mib": -1}, "memory_mib -1"),
    ],
)
def test_an_invalid_inventory_is_rejected_with_a_reason(
    world: World, change: dict[str, object], said: str
) -> None:
    (agent,) = agents_of(world, "delta")
    first, *rest = agent.inventory.gpus
    agent.inventory = replace(agent.inventory, gpus=[replace(first, **change), *rest])  # type: ignore[arg-type]
    with pytest.raises(AgentRejected, match=said):
        agent.sync(world.now)
    assert Gpu.objects.filter(host=world.hosts["delta"], retired_at=None).count() == 4


# -- silence -------------------------------------------------------------------------------------------------


def test_the_work_of_a_silent_host_is_requeued_and_the_host_returns_once_it_has_stopped_it(
    world: World,
) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    lost = next(a for a in agents if a.running)
    others = [a for a in agents if a is not lost]

    def tick(at: dt.datetime) -> str:
        for agent in others:
            agent.sync(at)
        silent_hosts.sweep_silent_hosts(at)
        return str(Host.objects.get(pk=lost.host.pk).lease_state)

    assert tick(world.now + 5 * SECOND) == "alive"
    assert tick(world.now + 15 * SECOND) == "suspect"
    assert tick(world.now + 60 * SECOND) == "suspect", "lease 30, grace 30 and margin 10 are not over"
    assert Workload.objects.get(pk=workload.pk).state == "running"
    assert tick(world.now + 71 * SECOND) == "silent"
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code) == ("queued", ReasonCode.HOST_LOST)
    start(world, others, world.now + 72 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "running" and workload.runs.get(attempt=2).host != lost.host

    # The host returns and still runs the lost work: it must stop the work before it is trusted again.
    answer = agent_api.sync(lost.host.pk, lost.observed(), world.now + 80 * SECOND)
    assert answer.runs == [] and Host.objects.get(pk=lost.host.pk).lease_state == "silent"
    lost.apply_desired(answer, world.now + 80 * SECOND)
    lost.sync(world.now + 81 * SECOND)
    assert Host.objects.get(pk=lost.host.pk).lease_state == "alive"
    states = list(
        HostStateChange.objects.filter(host=lost.host).order_by("pk").values_list("lease_state", flat=True)
    )
    assert states == ["alive", "suspect", "silent", "alive"]


def test_if_most_hosts_are_silent_no_work_is_requeued(world: World) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    for minutes in (1, 2, 10):
        agents[3].sync(world.now + minutes * MINUTE)
        silent_hosts.sweep_silent_hosts(world.now + minutes * MINUTE)
    workload.refresh_from_db()
    assert workload.state == "running"
    assert Host.objects.filter(lease_state="suspect").count() == 3
    for agent in agents:
        agent.sync(world.now + 11 * MINUTE)
    assert Host.objects.filter(lease_state="alive").count() == 4


def test_only_the_rule_of_mass_silence_prevents_the_requeue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    agents[3].sync(world.now + 2 * MINUTE)
    silent_hosts.sweep_silent_hosts(world.now + 2 * MINUTE)
    assert Workload.objects.get(pk=workload.pk).state == "running"
    monkeypatch.setattr(leases, "is_mass_silence", lambda quiet, hosts: False)
    silent_hosts.sweep_silent_hosts(world.now + 2 * MINUTE)
    assert Workload.objects.get(pk=workload.pk).state == "queued"


@pytest.mark.parametrize(
    ("quiet", "hosts", "is_mass"), [(2, 2, False), (3, 5, True), (5, 10, False), (6, 10, True)]
)
def test_mass_silence_means_more_than_55_percent_and_at_least_three_hosts(
    quiet: int, hosts: int, is_mass: bool
) -> None:
    assert leases.is_mass_silence(quiet, hosts) is is_mass


def test_the_work_of_a_host_attested_as_powered_off_is_requeued_at_once(world: World) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    lost = next(a for a in agents if a.running)
    others = [a for a in agents if a is not lost]
    assert not attest_powered_off(lost.host, reason="seen off", now=world.now + 5 * SECOND), (
        "its agent speaks"
    )
    at = world.now + 20 * SECOND  # before the end of lease 30, grace 30 and margin 10
    for agent in others:
        agent.sync(at)
    silent_hosts.sweep_silent_hosts(at)
    assert Workload.objects.get(pk=workload.pk).state == "running"
    assert attest_powered_off(lost.host, reason="seen off", now=at)
    start(world, others, at + SECOND)
    workload.refresh_from_db()
    assert workload.state == "running" and workload.runs.get(attempt=2).host != lost.host
    assert lost.host.lease_state == "silent" and units_of(lost.host) == []
    # The host is on after all: it stops the lost work and keeps its GPUs.
    lost.sync(world.now + 90 * SECOND)
    lost.sync(world.now + 91 * SECOND)
    lost.host.refresh_from_db()
    assert lost.host.lease_state == "alive" and len(units_of(lost.host)) == 8 and not lost.running


def test_a_gpu_may_move_to_another_host_only_after_its_host_is_attested_as_powered_off(world: World) -> None:
    alpha, gamma = agents_of(world, "alpha", "gamma")
    alpha.sync(world.now)
    gamma.sync(world.now)
    moved = replace(alpha.inventory.gpus[0], index=40)
    gamma.inventory = replace(gamma.inventory, gpus=[*gamma.inventory.gpus, moved])
    with pytest.raises(AgentRejected, match="is a GPU of host alpha"):
        gamma.sync(world.now + MINUTE)
    assert attest_powered_off(alpha.host, reason="seen off", now=world.now + 2 * MINUTE)
    gamma.sync(world.now + 2 * MINUTE)
    assert Gpu.objects.get(uuid=moved.uuid).host == gamma.host


def test_units_used_while_the_servers_clock_was_ahead_are_available_after_it_is_set_back(
    world: World,
) -> None:
    agents = agents_of(world, "alpha", "beta", "gamma", "delta")
    ahead = world.now + 60 * MINUTE
    for at in (ahead, ahead + MINUTE):
        workload = job(world, world.vision, 4, at, pool=world.static, models_wanted=[])
        start(world, agents, at)
        agents[3].end(agents[3].running[0], at + 10 * SECOND)
        agents[3].sync(at + 10 * SECOND)
        agents[3].sync(at + 10 * SECOND)
    back = world.now + 2 * MINUTE
    workload = job(world, world.vision, 4, back, pool=world.static, models_wanted=[])
    start(world, agents, back)
    workload.refresh_from_db()
    assert workload.state == "running"
    held = list(Allocation.objects.filter(workload=workload))
    assert {a.period.lower for a in held} == {ahead + MINUTE + 10 * SECOND}, "history is not changed"
    agents[3].end(agents[3].running[0], back + MINUTE)
    agents[3].sync(back + MINUTE)
    workload.refresh_from_db()
    assert workload.state == "ended" and not Allocation.objects.filter(period__upper_inf=True).exists()


def test_a_process_that_survives_sigkill_quarantines_its_gpu_until_it_ends(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    gpu = Allocation.objects.get().unit.gpu
    services.cancel_workload(workload, now=world.now)

    def look(seconds: int) -> str:
        stuck_processes.sweep_stuck_processes(world.now + seconds * SECOND)
        return str(Gpu.objects.get(pk=gpu.pk).repair_state)

    (run,) = agent.running
    stuck = replace(agent.runs[run], state="stopping")
    agent_api.sync(agent.host.pk, replace(agent.observed(), runs=[stuck]), world.now)
    assert look(59) == "well", "grace 30 and a lease of 30 are not over"
    assert look(61) == "quarantined"
    assert Allocation.objects.filter(period__upper_inf=True).exists(), "and nobody else is given it"
    agent.end(run, world.now + 70 * SECOND, outcome="killed_at_grace")
    agent.sync(world.now + 70 * SECOND)
    assert look(71) == "well"


def test_a_stuck_process_is_not_considered_ended_while_its_host_is_silent(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    workload = job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    start(world, [agent], world.now)
    gpu = Allocation.objects.get().unit.gpu
    services.cancel_workload(workload, now=world.now)
    (run,) = agent.running
    stuck = replace(agent.runs[run], state="stopping")
    Host.objects.exclude(pk=agent.host.pk).update(last_sync_at=world.now + 600 * SECOND)
    agent_api.sync(agent.host.pk, replace(agent.observed(), runs=[stuck]), world.now + 61 * SECOND)
    stuck_processes.sweep_stuck_processes(world.now + 61 * SECOND)
    late = world.now + 75 * SECOND
    silent_hosts.sweep_silent_hosts(late)
    assert Host.objects.get(pk=agent.host.pk).lease_state == "suspect"
    stuck_processes.sweep_stuck_processes(late)
    silent_hosts.sweep_silent_hosts(world.now + 200 * SECOND)
    assert Host.objects.get(pk=agent.host.pk).lease_state == "silent"
    stuck_processes.sweep_stuck_processes(world.now + 200 * SECOND)
    assert list(gpu.state_changes.values_list("repair_state", flat=True)) == ["quarantined"]


# -- taking hosts and GPUs out -------------------------------------------------------------------------------


def test_the_work_of_a_quarantined_gpu_is_requeued_and_placed_on_another_gpu(world: World) -> None:
    agents = agents_of(world, "alpha", "beta")
    workload = job(world, world.vision, 1, world.now)
    start(world, agents, world.now)
    gpu = Allocation.objects.get().unit.gpu
    assert services.quarantine_gpu(gpu, reason="xid:79", now=world.now + SECOND)
    for agent in agents * 2:
        agent.sync(world.now + 2 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code) == ("queued", ReasonCode.GPU_ERROR)
    start(world, agents, world.now + 3 * SECOND)
    assert Allocation.objects.get(workload=workload, period__upper_inf=True).unit.gpu != gpu
    assert services.return_gpu(gpu, now=world.now + 4 * SECOND)
    assert [c.repair_state for c in gpu.state_changes.order_by("pk")] == ["quarantined", "well"]


def test_a_maintenance_window_drains_its_host_in_time_and_returns_it_afterwards(world: World) -> None:
    agents = agents_of(world, "alpha", "beta")
    workload = job(world, world.vision, 8, world.now)
    start(world, agents, world.now)
    host = workload.runs.get().host
    begin = world.now + 30 * MINUTE
    services.set_maintenance(host, start=begin, end=begin + 60 * MINUTE, reason="new fans", now=world.now)
    maintenance.sweep_maintenance(world.now + 20 * MINUTE)
    assert Workload.objects.get(pk=workload.pk).state == "running"
    maintenance.sweep_maintenance(begin - 60 * SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "notice"
    maintenance.sweep_maintenance(begin - 58 * SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "notice", (
        "it has the whole notice to write its checkpoint"
    )
    maintenance.sweep_maintenance(begin)
    assert Host.objects.get(pk=host.pk).admin_state == "maintenance"
    maintenance.sweep_maintenance(begin + 61 * MINUTE)
    assert Host.objects.get(pk=host.pk).admin_state == "in_service"


# -- logs ----------------------------------------------------------------------------------------------------


def test_duplicate_and_late_log_chunks_are_placed_by_their_offset(
    world: World, settings: object, tmp_path: object
) -> None:
    settings.GPUPOOL_STATE = tmp_path  # type: ignore[attr-defined]
    (agent,) = agents_of(world, "delta")
    job(world, world.vision, 1, world.now, pool=world.static, models_wanted=[])
    engine.run_cycle("test", world.now)
    run = Run.objects.get()
    for offset, text in ((6, "two\n"), (0, "one\n"), (0, "one\n"), (4, "é")):
        agent_api.store_log(agent.host.pk, LogChunk(str(run.public_id), offset, text))
    assert logs.read_log(run.public_id) == ("one\nétwo\n", 10)
    assert logs.read_log(run.public_id, -4) == ("two\n", 10)
    for stranger in ("no id", "0" * 32):
        with pytest.raises(AgentRejected, match="of this host"):
            agent_api.store_log(agent.host.pk, LogChunk(stranger, 0, "x"))
    with pytest.raises(AgentRejected):
        agent_api.store_log(world.hosts["alpha"].pk, LogChunk(str(run.public_id), 0, "x"))
