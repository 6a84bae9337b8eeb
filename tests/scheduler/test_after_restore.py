"""Test the recovery after the database was restored from a backup while hosts continued to run."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client

from agent.host.state import Generations
from agent.protocol import RunSeen
from agent.server import host_key
from portal.models import ApiToken, AuditEvent, Organisation, User
from portal.services.people import api_tokens
from scheduler import services
from scheduler.cycle import engine
from scheduler.models import Host, Run, Workload
from scheduler.services import host_credentials as credentials
from scheduler.services.host_credentials import CREDENTIAL_RENEW_AFTER, CREDENTIAL_TTL, MAX_CREDENTIAL_CHAIN
from scheduler.sweeps.silent_hosts import sweep_silent_hosts
from scheduler.sync.agent_rejections import AgentRejected
from tests.fakes import FakeAgent
from tests.scheduler.test_agent_identity import Key
from tests.scheduler.test_job_lifecycle import job
from tests.world import World, units_of

SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)


def next_generation() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('scheduler_generation')")
        return int(cursor.fetchone()[0])


def test_a_host_with_newer_generations_accepts_starts_after_the_recovery(
    world: World, tmp_path: Path
) -> None:
    unit = str(units_of(world.hosts["alpha"])[0].uuid)
    seen = Generations(tmp_path / "generations.json")
    seen.use(next_generation() + 100_000, [unit])  # generations issued after the backup
    assert "is not above" in seen.refusal(next_generation(), [unit])
    before = next_generation()
    done = services.recover_after_restore(now=world.now)
    assert done.generation > before + (1 << 31)
    after = next_generation()
    assert after == done.generation + 1 and seen.refusal(after, [unit]) == ""
    job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    assert not Run.objects.exists(), "no host has reported since the restore"
    for host in world.hosts.values():
        FakeAgent.of(host).sync(world.now)
    engine.run_cycle("test", world.now)
    assert Run.objects.get().generation == after + 1


def test_an_agent_restarted_since_the_backup_is_accepted_and_a_copy_is_still_rejected(
    world: World,
) -> None:
    agent, copy = FakeAgent.of(world.hosts["alpha"]), FakeAgent.of(world.hosts["alpha"])
    agent.start, copy.start = "since the backup", "of a copy"
    Host.objects.filter(name="alpha").update(agent_start="at the backup")
    with pytest.raises(AgentRejected, match="copy of the state folder"):
        agent.sync(world.now)
    assert services.recover_after_restore(now=world.now).hosts == 1
    agent.sync(world.now + SECOND)
    with pytest.raises(AgentRejected, match="copy of the state folder"):
        copy.sync(world.now + 2 * SECOND)
    agent.sync(world.now + 3 * SECOND)


def renewed(key: Key, at: dt.datetime) -> str:
    """Return the next credential, renewed over an open connection."""
    host = Host.objects.get(name="alpha")
    challenge = services.due_challenge(host, now=at)
    credential = services.redeem_challenge(
        host, challenge=challenge, signature=key.sign(host_key.renewal_message(challenge)), now=at
    )
    assert services.verify_credential(credential.text, now=at) == host.pk
    return credential.text


def test_credentials_issued_since_the_backup_are_accepted_after_the_recovery(world: World) -> None:
    key, at = Key(), world.now
    key.join(world, at)
    Host.objects.filter(name="alpha").update(last_sync_at=at)
    backup = Host.objects.filter(name="alpha").values("credential_hash", "credential_expires_at").get()
    for _ in range(3):
        at += CREDENTIAL_RENEW_AFTER
        last = renewed(key, at)
    Host.objects.filter(name="alpha").update(**backup)
    assert services.verify_credential(last, now=at) is None, "the credential in the backup has expired"
    assert services.recover_after_restore(now=at).credentials == 1
    host = world.hosts["alpha"].pk
    assert services.verify_credential(f"gpa.{host}.nonsense", now=at) is None
    assert services.verify_credential(last, now=at) == host
    assert (
        services.verify_credential(renewed(key, at + CREDENTIAL_RENEW_AFTER), now=at + CREDENTIAL_RENEW_AFTER)
        == host
    )


def test_a_credential_chain_is_followed_up_to_its_maximum_and_never_backwards(world: World) -> None:
    first = Key().join(world, world.now)
    host = Host.objects.get(name="alpha")
    links = [first]
    for _ in range(MAX_CREDENTIAL_CHAIN + 1):
        links.append(credentials._credential_text_after(host.pk, credentials._hash(links[-1])))
    assert services.verify_credential(links[MAX_CREDENTIAL_CHAIN + 1], now=world.now) is None
    assert services.verify_credential(links[MAX_CREDENTIAL_CHAIN], now=world.now) == host.pk
    for old in links[:MAX_CREDENTIAL_CHAIN]:
        assert services.verify_credential(old, now=world.now) is None


def test_the_recovery_restores_no_revoked_and_no_expired_credential(world: World) -> None:
    expired, revoked = world.hosts["alpha"], world.hosts["beta"]
    for host in (expired, revoked):
        FakeAgent.of(host)
    services.revoke_credential(Host.objects.get(pk=revoked.pk), now=world.now)
    Host.objects.filter(pk=expired.pk).update(last_sync_at=world.now, credential_expires_at=world.now - HOUR)
    assert services.recover_after_restore(now=world.now + CREDENTIAL_TTL).credentials == 0
    assert Host.objects.get(pk=revoked.pk).credential_hash == ""


def test_a_run_that_ended_after_the_backup_is_lost_and_requeued_without_blaming_the_host(
    world: World,
) -> None:
    workload = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    run = Run.objects.get()
    agent = FakeAgent.of(run.host)
    agent.sync(world.now)
    agent.sync(world.now + SECOND)
    assert Run.objects.get(pk=run.pk).state == "running"
    reason = f"refused: generation {run.generation} was used before"
    forgot = RunSeen(str(run.public_id), run.generation, "ended", step=reason, outcome="start_failed")
    agent.runs = {str(run.public_id): forgot}
    agent.sync(world.now + 2 * SECOND)
    assert Run.objects.get(pk=run.pk).outcome == "host_lost"
    assert Workload.objects.get(pk=workload.pk).state == "queued"


def test_the_command_recovers_writes_an_audit_record_and_prints_the_next_steps(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    before = next_generation()
    Host.objects.filter(name="alpha").update(agent_start="at the backup")
    call_command("after_restore")
    output = capsys.readouterr().out
    record = AuditEvent.objects.get(verb="after_restore")
    assert (
        record.after["generation"] > before + (1 << 31)
        and record.after["hosts"] == 1
        and record.actor is None
    )
    assert str(record.after["generation"] + 1) in output
    assert not Host.objects.exclude(agent_start="").exists()


def test_a_host_keeps_its_run_if_it_reports_within_a_lease_after_an_old_backup(world: World) -> None:
    workload = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    run = Run.objects.get()
    agent = FakeAgent.of(run.host)
    agent.sync(world.now)
    agent.sync(world.now + SECOND)
    restored_at = world.now + 5 * HOUR
    assert services.recover_after_restore(now=restored_at).reporting >= 1
    host = Host.objects.get(pk=run.host_id)
    assert host.lease_state == "suspect", "no new work before its report"
    sweep_silent_hosts(restored_at + 20 * SECOND)
    assert Run.objects.get().state == "running"
    agent.sync(restored_at + 21 * SECOND)
    assert Host.objects.get(pk=run.host_id).lease_state == "alive"
    assert Workload.objects.get(pk=workload.pk).state == "running"


def test_a_host_that_does_not_report_after_the_restore_loses_its_run(world: World) -> None:
    job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    agent = FakeAgent.of(Run.objects.get().host)
    agent.sync(world.now)
    services.recover_after_restore(now=world.now + HOUR)
    others = Host.objects.exclude(pk=Run.objects.get().host_id)
    others.update(last_sync_at=world.now + 2 * HOUR)  # otherwise all hosts are silent at once
    sweep_silent_hosts(world.now + 2 * HOUR)
    assert Run.objects.get().outcome == "host_lost"


def test_the_command_revokes_all_tokens_unless_the_log_was_recovered_to_its_end(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    member = world.vision.member
    token, _ = api_tokens.create_token(actor=member, name="laptop", now=world.now)
    call_command("after_restore", keep_tokens=True)
    assert "tokens are revoked" not in capsys.readouterr().out
    assert ApiToken.objects.get().revoked_at is None
    call_command("after_restore")
    assert (
        f"1 API tokens are revoked:\n  {member.username}: laptop ({token.prefix}...)"
        in capsys.readouterr().out
    )
    assert ApiToken.objects.get().revoked_at is not None
    assert AuditEvent.objects.filter(verb="revoke_token", actor=None).count() == 1


def test_access_that_a_newer_state_denies_is_taken_back(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member, colleague = world.vision.member, world.vision.lead
    leaked, _ = api_tokens.create_token(actor=member, name="leaked", now=world.now)
    kept, _ = api_tokens.create_token(actor=member, name="kept", now=world.now)
    FakeAgent.of(world.hosts["alpha"])
    alpha = Host.objects.filter(name="alpha").values("credential_hash", "credential_expires_at").get()
    client = Client()
    client.force_login(member)
    older = member.password
    api_tokens.revoke_token(actor=member, token=leaked, now=world.now)
    services.revoke_credential(Host.objects.get(name="alpha"), now=world.now)
    User.objects.filter(pk=colleague.pk).update(is_active=False)
    User.objects.filter(pk=member.pk).update(password="newer")
    call_command("after_restore", print_access=True)
    (tmp_path / "access.json").write_text(capsys.readouterr().out)
    # The restored database has the state of before.
    ApiToken.objects.filter(pk=leaked.pk).update(revoked_at=None)
    Host.objects.filter(name="alpha").update(**alpha)
    User.objects.filter(pk=colleague.pk).update(is_active=True)
    User.objects.filter(pk=member.pk).update(password=older)
    call_command("after_restore", access=str(tmp_path / "access.json"))
    output = capsys.readouterr().out
    assert ApiToken.objects.get(pk=leaked.pk).revoked_at is not None
    assert ApiToken.objects.get(pk=kept.pk).revoked_at is None
    assert not User.objects.get(pk=colleague.pk).is_active
    assert User.objects.get(pk=member.pk).password == "newer"
    assert Host.objects.get(name="alpha").credential_hash == ""
    assert not Session.objects.exists()
    assert "1 accounts are closed" in output and "1 hosts have no credential" in output


def test_the_command_does_nothing_without_an_organisation(world: World) -> None:
    Organisation.objects.all().delete()
    before = next_generation()
    with pytest.raises(CommandError, match="restore the backup first"):
        call_command("after_restore")
    assert next_generation() == before + 1
