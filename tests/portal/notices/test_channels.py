"""Test that notices arrive: at an SMTP server and at a receiver of webhooks, once, and after outages."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from django.db import connection
from django.db.models import JSONField, Value
from django.test.utils import CaptureQueriesContext

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, NoticeChannel, NoticeMessage, NoticeMessageItem, Notification, User
from portal.notices import delivery
from portal.notices.channels.sending import CLAIM_SECONDS, send_due_messages
from portal.reads.people.notice_channels import notice_channels
from portal.services.people.notice_channels import channels
from portal.services.people.notice_channels.addresses import SERVICE_NAMES, chat_service
from portal.services.work import launch
from portal.wording.notices.notice_texts import NOTICE_SENTENCES
from portal.wording.notices.topics import PORTAL_KINDS, TOPIC_KINDS, TOPIC_LABELS, TOPIC_OF_KIND
from scheduler.core.rejection import OperationRejected
from scheduler.models import Team, Workload
from tests.portal.edge.conftest import free_port
from tests.world import H100, World

pytestmark = pytest.mark.django_db

ALL_TOPICS = list(TOPIC_LABELS)
DAY = timedelta(days=1)


@dataclass
class Mailbox:
    """An SMTP server on loopback that keeps the mails that it gets."""

    port: int
    mails: list[Message] = field(default_factory=list)
    refuses: bool = False

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.refuses:
            return "554 no such list"
        mail = message_from_bytes(envelope.content)
        mail["X-Envelope-To"] = ", ".join(envelope.rcpt_tos)
        self.mails.append(mail)
        return "250 taken"


@pytest.fixture
def mailbox(settings: Any) -> Iterator[Mailbox]:
    box = Mailbox(free_port())
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", box.port
    controller = Controller(box, hostname="127.0.0.1", port=box.port)
    controller.start()
    yield box
    controller.stop()


@dataclass
class Receiver:
    """A receiver of webhooks on loopback that answers with the given status."""

    url: str = ""
    status: int = 204
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.GPUPOOL_NOTICE_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.append(({key.lower(): value for key, value in self.headers.items()}, body))
            self.send_response(found.status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/hook?key=1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()


def at(moment: datetime) -> Any:
    return lambda: moment


def own_mail(world: World, **fields: Any) -> NoticeChannel:
    values = {"name": "Mail", "kind": "mail", "topics": ALL_TOPICS} | fields
    return channels.create_channel(actor=world.vision.member, now=world.now, **values)[0]


def webhook(world: World, receiver: Receiver, **fields: Any) -> tuple[NoticeChannel, str]:
    values = {"name": "hook", "kind": "webhook", "topics": ALL_TOPICS, "address": receiver.url} | fields
    return channels.create_channel(actor=world.vision.lead, now=world.now, **values)


def ended_job(world: World, name: str = "train") -> Workload:
    job = launch.submit_job(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name=name,
        command="x",
        units=1,
        models=[H100],
        max_runtime_seconds=3600,
        now=world.now,
    )
    Workload.objects.filter(pk=job.pk).update(state="ended", outcome="finished", ended_at=world.now)
    return job


def test_each_kind_of_notice_has_one_topic() -> None:
    kinds = [kind for listed in TOPIC_KINDS.values() for kind in listed]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) | set(PORTAL_KINDS) | {"channel_test"} == set(NOTICE_SENTENCES)
    assert set(TOPIC_KINDS) == set(TOPIC_LABELS)


def test_a_notice_arrives_by_mail_in_text_and_html_with_one_link(world: World, mailbox: Mailbox) -> None:
    own_mail(world)
    job = ended_job(world)
    delivery.write_notices(world.now)
    assert send_due_messages(at(world.now)) == 1
    mail = mailbox.mails[0]
    text, html = (part.get_payload(decode=True).decode() for part in mail.get_payload())
    sentence = str(mail["Subject"])
    assert mail["X-Envelope-To"] == world.vision.member.email
    assert "train" in sentence and "train ended." in text
    assert text.count(f"/jobs/{job.public_id}/") == 1 and html.count(f"/jobs/{job.public_id}/") == 1
    message = NoticeMessage.objects.get()
    assert message.state == "sent" and str(message.public_id) in str(mail["Message-ID"])
    # A second run writes and sends nothing.
    delivery.write_notices(world.now + timedelta(seconds=5))
    assert send_due_messages(at(world.now + timedelta(seconds=5))) == 0
    assert len(mailbox.mails) == 1


def test_a_mail_server_that_is_away_delays_mails_and_loses_none(
    world: World, settings: Any, mailbox: Mailbox
) -> None:
    channel = own_mail(world)
    settings.EMAIL_PORT = free_port()
    for number in range(3):
        ended_job(world, f"train-{number}")
    delivery.write_notices(world.now)
    assert send_due_messages(at(world.now)) == 0
    channel.refresh_from_db()
    assert channel.failing_since == world.now and "did not take the mail" in channel.failure
    assert sorted(NoticeMessage.objects.values_list("attempts", flat=True)) == [0, 0, 1]
    settings.EMAIL_PORT = mailbox.port
    later = world.now + timedelta(minutes=1)
    assert send_due_messages(at(later)) == 3
    channel.refresh_from_db()
    assert len(mailbox.mails) == 3 and channel.failing_since is None and channel.last_sent_at == later


def test_a_message_whose_sender_was_killed_is_sent_again_with_the_same_id(
    world: World, mailbox: Mailbox
) -> None:
    own_mail(world)
    ended_job(world)
    delivery.write_notices(world.now)
    until = world.now + timedelta(seconds=CLAIM_SECONDS)
    NoticeMessage.objects.update(claimed_until=until)  # its sender ended without a result
    assert send_due_messages(at(world.now + timedelta(seconds=5))) == 0
    assert send_due_messages(at(until + timedelta(seconds=1))) == 1
    assert str(NoticeMessage.objects.get().public_id) in str(mailbox.mails[0]["Message-ID"])


def test_a_digest_collects_notices_and_quiet_hours_hold_them_back(world: World, mailbox: Mailbox) -> None:
    own_mail(world, digest="hourly")
    for number in range(3):
        ended_job(world, f"train-{number}")
    delivery.write_notices(world.now)
    ended_job(world, "train-3")
    delivery.write_notices(world.now + timedelta(seconds=5))
    message = NoticeMessage.objects.get()
    assert message.items.count() == 4 and message.due_at > world.now
    assert send_due_messages(at(message.due_at - timedelta(seconds=1))) == 0
    assert send_due_messages(at(message.due_at)) == 1
    assert mailbox.mails[0]["Subject"] == "[gpupool] 4 notices"


def test_a_webhook_is_signed_and_its_secret_is_shown_once(world: World, receiver: Receiver) -> None:
    channel, secret = webhook(world, receiver, team=world.vision.team)
    ended_job(world)
    delivery.write_notices(world.now)
    assert send_due_messages(at(world.now)) == 1
    headers, body = receiver.requests[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    notices = json.loads(body)["data"]["notices"]
    assert [notice["kind"] for notice in notices] == ["ended"] and "train" in notices[0]["text"]
    assert "key=1" not in channel.shown_address and secret not in str(AuditEvent.objects.values())


def test_a_webhook_that_fails_is_tried_again_and_its_owner_is_told_in_the_portal(
    world: World, receiver: Receiver
) -> None:
    receiver.status = 500
    channel, _ = webhook(world, receiver)
    channels.test_channel(actor=world.vision.lead, channel=channel, now=world.now)
    assert send_due_messages(at(world.now)) == 0
    message = NoticeMessage.objects.get()
    assert (message.state, message.attempts, message.answer) == ("waiting", 1, "status 500")
    assert message.due_at == world.now + timedelta(seconds=10)
    later = world.now + timedelta(minutes=16)
    delivery.write_notices(later)
    assert Notification.objects.get(kind="channel_fails").user == world.vision.lead
    assert send_due_messages(at(world.now + 3 * DAY)) == 0
    message.refresh_from_db()
    assert message.state == "failed"
    receiver.status = 200
    channels.send_again(actor=world.vision.lead, message=message, now=world.now + 3 * DAY)
    assert send_due_messages(at(world.now + 3 * DAY)) == 1
    ids = {headers["webhook-id"] for headers, _ in receiver.requests}
    assert ids == {str(message.public_id)} and len(receiver.requests) == 3


@pytest.mark.parametrize(("status", "active"), [(302, True), (410, False)])
def test_a_redirect_is_not_followed_and_a_receiver_that_is_gone_gets_nothing_more(
    world: World, receiver: Receiver, status: int, active: bool
) -> None:
    receiver.status = status
    channel, _ = webhook(world, receiver)
    channels.test_channel(actor=world.vision.lead, channel=channel, now=world.now)
    assert send_due_messages(at(world.now)) == 0
    channel.refresh_from_db()
    assert channel.active is active and channel.failure == f"status {status}"
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "address",
    [
        "https://127.0.0.1/hook",
        "https://10.0.0.7/hook",
        "https://[::1]/hook",
        "https://[::ffff:169.254.169.254]/latest/meta-data",
        "https://169.254.169.254/latest/meta-data",
        "https://0.0.0.0/hook",
        "http://192.0.2.1/hook",
        "ftp://example.org/hook",
        "file:///etc/passwd",
        "https:///hook",
        "https://[/hook",
    ],
)
def test_webhooks_to_private_addresses_and_other_schemes_are_refused(world: World, address: str) -> None:
    with pytest.raises(Invalid) as refused:
        channels.create_channel(
            actor=world.vision.lead,
            now=world.now,
            name="hook",
            kind="webhook",
            topics=["work"],
            address=address,
        )
    assert "address" in refused.value.fields and not NoticeChannel.objects.exists()


def test_an_address_that_became_private_after_the_check_gets_no_request(
    world: World, settings: Any, receiver: Receiver
) -> None:
    channel, _ = webhook(world, receiver)
    settings.GPUPOOL_NOTICE_NETWORKS = ()
    channels.test_channel(actor=world.vision.lead, channel=channel, now=world.now)
    assert send_due_messages(at(world.now)) == 0
    assert receiver.requests == []
    assert "private address 127.0.0.1" in NoticeMessage.objects.get().answer


@pytest.mark.parametrize(
    "address", ["syslog://", "exec://x", "json://127.0.0.1", "matrixs://u:p@127.0.0.1/#room", "slack://", "x"]
)
def test_unknown_services_and_services_on_private_hosts_are_refused(world: World, address: str) -> None:
    fields = {"name": "chat", "kind": "service", "topics": ["work"], "address": address}
    with pytest.raises(Invalid) as refused:
        channels.create_channel(actor=world.vision.member, now=world.now, **fields)
    assert "address" in refused.value.fields


def test_a_chat_service_on_an_allowed_host_gets_the_notice(world: World, receiver: Receiver) -> None:
    port = receiver.url.split(":")[2].partition("/")[0]
    channel, _ = channels.create_channel(
        actor=world.vision.member,
        now=world.now,
        name="chat",
        kind="service",
        topics=["work"],
        address=f"ntfys://127.0.0.1:{port}/gpus",
    )
    channels.test_channel(actor=world.vision.member, channel=channel, now=world.now)
    assert send_due_messages(at(world.now)) == 0  # the receiver does not speak TLS
    channel.refresh_from_db()
    assert channel.failing_since == world.now and channel.failure
    assert channel.shown_address == f"{SERVICE_NAMES['ntfys']} on 127.0.0.1"


def test_mail_of_a_person_goes_only_to_the_address_of_the_account(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        own_mail(world, address="somebody@example.org")
    assert world.vision.member.email in refused.value.fields["address"]


@pytest.mark.parametrize("topics", [[], ["everything"], ["work", "hosts ", "x"]])
def test_topics_must_be_known(world: World, topics: list[str]) -> None:
    with pytest.raises(Invalid) as refused:
        own_mail(world, topics=topics)
    assert "topics" in refused.value.fields


def test_a_channel_gets_only_its_topics(world: World, mailbox: Mailbox) -> None:
    own_mail(world, topics=["money", "hosts"])
    ended_job(world)
    delivery.write_notices(world.now)
    assert Notification.objects.filter(user=world.vision.member).exists()
    assert not NoticeMessageItem.objects.exists()
    assert TOPIC_OF_KIND["ended"] == "work"


def test_only_leads_and_operators_manage_the_channels_of_a_team(world: World, receiver: Receiver) -> None:
    with pytest.raises(NotAllowed):
        channels.create_channel(
            actor=world.vision.member,
            team=world.vision.team,
            now=world.now,
            name="x",
            kind="webhook",
            topics=["work"],
            address=receiver.url,
        )
    channel, _ = webhook(world, receiver, team=world.vision.team)
    for stranger in (world.vision.member, world.people["auditor"], world.language.lead):
        with pytest.raises(NotAllowed):
            channels.change_channel(actor=stranger, channel=channel, now=world.now, active=False)
    changed = channels.change_channel(actor=world.operator, channel=channel, now=world.now, active=False)
    assert not changed.active
    channels.remove_channel(actor=world.vision.lead, channel=channel, now=world.now)
    verbs = list(AuditEvent.objects.order_by("pk").values_list("verb", flat=True))
    assert verbs[-3:] == ["create_notice_channel", "change_notice_channel", "remove_notice_channel"]


def test_one_owner_has_a_limited_number_of_channels(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MAX_CHANNELS", 1)
    own_mail(world)
    with pytest.raises(OperationRejected) as rejected:
        own_mail(world)
    assert rejected.value.code == "too_many_channels"


def test_a_message_that_cannot_be_built_or_sent_does_not_hold_up_the_others(
    world: World, receiver: Receiver, mailbox: Mailbox
) -> None:
    broken, _ = webhook(world, receiver)
    channels.test_channel(actor=world.vision.lead, channel=broken, now=world.now)
    NoticeChannel.objects.filter(pk=broken.pk).update(target=Value({"encrypted": "?"}, JSONField()))
    odd, _ = webhook(world, receiver)
    channels.test_channel(actor=world.vision.lead, channel=odd, now=world.now)
    odd.target = {**odd.target, "secret": "whsec_\u00e9"}  # no base64
    odd.save()
    mail = own_mail(world)
    channels.test_channel(actor=world.vision.member, channel=mail, now=world.now)
    assert send_due_messages(at(world.now)) == 1
    assert len(mailbox.mails) == 1
    answers = dict(NoticeMessage.objects.values_list("channel_id", "answer"))
    assert "no key of this installation" in answers[broken.pk] and answers[odd.pk]
    states = dict(NoticeMessage.objects.values_list("channel_id", "state"))
    assert (states[broken.pk], states[odd.pk], states[mail.pk]) == ("waiting", "waiting", "sent")
    # The portal still writes and shows notices.
    ended_job(world)
    assert delivery.write_notices(world.now) == 1
    assert [row.name for row in notice_channels(world.vision.lead)] == ["hook", "hook"]


def test_waiting_messages_of_a_closed_account_and_of_a_removed_team_are_not_sent(
    world: World, mailbox: Mailbox
) -> None:
    own = own_mail(world)
    of_team, _ = channels.create_channel(
        actor=world.vision.lead,
        team=world.vision.team,
        now=world.now,
        name="list",
        kind="mail",
        topics=["work"],
        address="vision@example.org",
    )
    channels.test_channel(actor=world.vision.member, channel=own, now=world.now)
    channels.test_channel(actor=world.vision.lead, channel=of_team, now=world.now)
    User.objects.filter(pk=world.vision.member.pk).update(is_active=False)
    Team.objects.filter(pk=world.vision.team.pk).update(removed_at=world.now)
    assert send_due_messages(at(world.now)) == 0 and mailbox.mails == []


def test_old_messages_are_deleted_even_if_their_channel_was_switched_off(world: World) -> None:
    channel = own_mail(world)
    channels.test_channel(actor=world.vision.member, channel=channel, now=world.now)
    channels.change_channel(actor=world.vision.member, channel=channel, now=world.now, active=False)
    assert delivery.delete_old_notices(world.now + timedelta(days=1)) == 0
    assert delivery.delete_old_notices(world.now + timedelta(days=400)) == 1
    assert not NoticeMessage.objects.exists()


def test_a_chat_service_follows_no_redirect_and_gives_up_in_seconds_whatever_its_address_says() -> None:
    wishes = "redirect=yes&discovery=yes&verify=no&rto=9999&cto=9999&retry=5"
    service = chat_service(f"matrixs://user:secret@chat.example.org/%23room?{wishes}")
    assert service is not None
    assert (service.redirects, service.discovery, service.verify_certificate) == (False, False, True)
    assert service.retry == 0 and service.request_timeout == (5.0, 10.0)


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "169.254.169.254"])
def test_a_zulip_server_on_a_private_host_is_refused(world: World, host: str) -> None:
    address = f"zulip://bot@{host}/{'a1b2c3d4' * 4}/general"
    fields = {"name": "chat", "kind": "service", "topics": ["work"], "address": address}
    with pytest.raises(Invalid) as refused:
        channels.create_channel(actor=world.vision.member, now=world.now, **fields)
    assert f"private address {host}" in refused.value.fields["address"]


def test_the_number_of_queries_does_not_depend_on_the_number_of_channels(world: World) -> None:
    counts = []
    for number in (1, 2, 6):
        while NoticeChannel.objects.count() < number:
            own_mail(world, name=f"Mail {NoticeChannel.objects.count()}")
        ended_job(world, f"train-{number}")
        with CaptureQueriesContext(connection) as queries:
            delivery.write_notices(world.now)
        counts.append(len(queries))
    assert NoticeMessage.objects.count() == 1 + 2 + 6
    assert counts[1] == counts[2]
