"""Test the identity of agents: join tokens, credentials, keys and copies of the state folder."""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.protocol import JoinRequest, Observed, Proof, RenewRequest
from agent.server import host_key
from scheduler import services
from scheduler.cycle import snapshot
from scheduler.models import Host, HostStateChange
from scheduler.services.host_credentials import CREDENTIAL_TTL
from scheduler.sync import agent_api
from scheduler.sync.agent_api import AgentRejected
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of
from tests.world import World

SECOND = dt.timedelta(seconds=1)
MINUTE = dt.timedelta(minutes=1)


def join(world: World, token: str, at: dt.datetime, host: str = "alpha") -> str:
    return agent_api.join(JoinRequest(1, token, host, "new instance", "boot"), at).credential


def test_an_agent_joins_with_a_token_and_its_credential_identifies_it(world: World) -> None:
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)
    credential = join(world, token, world.now + 14 * MINUTE)
    assert agent_api.authenticate(credential, world.now + MINUTE) == world.hosts["alpha"].pk
    assert agent_api.authenticate(credential + "x", world.now) is None
    assert agent_api.authenticate(credential, world.now + dt.timedelta(days=2)) is None
    for nonsense in ("", "gpa.1.", "gpa.999999999999999999.x", "gpa.²³.x", "a.b.c.d", "gpa.0.x"):
        assert agent_api.authenticate(nonsense, world.now) is None


@pytest.mark.parametrize(
    ("late", "host", "spoil", "message"),
    [
        (16 * MINUTE, "alpha", "", "older than 15 minutes"),
        (MINUTE, "beta", "", "made for another host"),
        (MINUTE, "alpha", "x", "not known"),
    ],
)
def test_an_invalid_join_token_is_rejected_with_a_reason(
    world: World, late: dt.timedelta, host: str, spoil: str, message: str
) -> None:
    token = services.issue_join_token(world.hosts["alpha"], now=world.now)
    with pytest.raises(AgentRejected, match=message):
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


def test_a_credential_is_renewed_after_two_thirds_and_repeated_until_the_agent_uses_it(world: World) -> None:
    host = world.hosts["alpha"]
    old = join(world, services.issue_join_token(host, now=world.now), world.now)
    assert agent_api.desired(host.pk, world.now).credential == ""
    later = world.now + CREDENTIAL_TTL * 0.7
    new = agent_api.desired(host.pk, later).credential
    assert new and new == agent_api.desired(host.pk, later + MINUTE).credential
    assert agent_api.authenticate(old, later) == host.pk, "valid until the agent uses the new credential"
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
        "a reboot needs no decision by an operator"
    )
    with pytest.raises(AgentRejected, match="clone"):
        agent.sync(world.now + 91 * SECOND)
    clone.sync(world.now + 92 * SECOND)
    assert Host.objects.get(pk=agent.host.pk).refused_agent["boot_id"] == agent.boot_id, "this is no reboot"


def test_another_boot_is_accepted_only_after_the_hosts_old_work_must_have_ended(world: World) -> None:
    """Assume that a disconnected host may run its work for 70 s: lease 30 s, grace 30 s and margin 10 s."""
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
            agent.sync(world.now + seconds * SECOND, frame(""))  # a frame without the id of the agent's start
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


class Key:
    """A host's key pair, in the format of ``agent.server.host_key``."""

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
    with pytest.raises(AgentRejected, match="private key of public_key"):
        other_key.join(world, world.now, signs=own_key)
    assert Host.objects.get(name="alpha").public_key == ""
    own_key.join(world, world.now)
    assert Host.objects.get(name="alpha").public_key == own_key.public


@pytest.mark.parametrize("has_reported", [False, True], ids=["new host", "host that reported before"])
def test_an_agent_that_lost_the_join_response_may_join_again_with_the_same_token(
    world: World, has_reported: bool
) -> None:
    if not has_reported:
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
    assert asked.challenge and asked.credential == "", "the old credential alone is not enough"
    assert agent_api.desired(host.pk, later + SECOND).challenge == asked.challenge, "one signature is enough"
    right = Proof(asked.challenge, key.sign(host_key.renewal_message(asked.challenge)))
    for wrong, message in (
        (
            Proof(asked.challenge, Key().sign(host_key.renewal_message(asked.challenge))),
            "not made with the key",
        ),
        (Proof(asked.challenge, "no base64"), "not made with the key"),
        (Proof(asked.challenge.replace("gpc.", "gpc.1"), right.signature), "not of this host's"),
        (Proof("gpc.1.²³.x", right.signature), "not of this host's"),
        (Proof("gpc.1.{}.x".format("9" * 5000), right.signature), "not of this host's"),
        (Proof("", right.signature), "not of this host's"),
    ):
        with pytest.raises(AgentRejected, match=message):
            agent_api.redeem_challenge(host.pk, wrong, later)
    with pytest.raises(AgentRejected, match="too old"):
        agent_api.redeem_challenge(host.pk, right, later + 11 * MINUTE)
    new, expires = agent_api.redeem_challenge(host.pk, right, later)
    assert expires == (later + CREDENTIAL_TTL).timestamp()
    assert agent_api.authenticate(new, later) == host.pk and agent_api.authenticate(old, later) is None
    with pytest.raises(AgentRejected, match="not of this host's"):
        # The challenge was for the previous credential.
        agent_api.redeem_challenge(host.pk, right, later)


def test_a_host_that_was_off_for_days_renews_with_its_key_unless_it_is_revoked(world: World) -> None:
    host, key = world.hosts["alpha"], Key()
    old = key.join(world, world.now)
    late = world.now + dt.timedelta(days=5)
    assert agent_api.authenticate(old, late) is None

    def renew(at: dt.datetime, credential: str = old, signs: Key = key) -> str:
        challenge = agent_api.renew(credential, RenewRequest(1), at).challenge
        signed = RenewRequest(1, challenge, signs.sign(host_key.renewal_message(challenge)))
        return agent_api.renew(credential, signed, at).credential

    for rejected_renewal in (
        lambda: renew(late, old + "x"),
        lambda: renew(late, signs=Key()),
        lambda: renew(world.now + dt.timedelta(days=40)),
    ):
        with pytest.raises(AgentRejected):
            rejected_renewal()
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
    assert renew(late + SECOND) == lost, "the new credential is already valid"
    assert renew(late + CREDENTIAL_TTL * 2) == lost, "also after the new credential has expired"
    with pytest.raises(AgentRejected, match="not made with the key"):
        renew(late + CREDENTIAL_TTL * 2, signs=Key())
    reported_at = late + CREDENTIAL_TTL * 2 + SECOND
    assert agent_api.authenticate(lost, reported_at) == world.hosts["alpha"].pk
    Host.objects.filter(name="alpha").update(last_sync_at=reported_at)
    with pytest.raises(AgentRejected, match="not of this host's last credential"):
        renew(reported_at + SECOND)


def test_a_copy_of_the_state_folder_cannot_renew_while_the_hosts_credential_is_valid(world: World) -> None:
    """Reject the copy's renewal, because it would disconnect the host's own agent at once."""
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
