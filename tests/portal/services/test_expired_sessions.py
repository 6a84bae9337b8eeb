"""Test the deletion of expired sessions and workspace entries."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session

from portal.models import EntryCode, WorkspaceSession
from portal.services.work import launch
from portal.sweeps import expired_sessions
from tests.world import World

pytestmark = pytest.mark.django_db


def test_expired_sessions_and_entries_are_deleted_and_valid_ones_are_kept(world: World) -> None:
    notebook = launch.launch_notebook(
        actor=world.vision.member, project=world.vision.project, pool=world.shared, now=world.now
    )
    cookie = timedelta(seconds=settings.SESSION_COOKIE_AGE)
    minute = timedelta(minutes=1)
    for name, ends in (("gone", world.now - minute), ("kept", world.now + minute)):
        owner_fields = {"user": world.vision.member, "workload": notebook}
        EntryCode.objects.create(code_hash=name, created_at=ends - minute, expires_at=ends, **owner_fields)
        WorkspaceSession.objects.create(token_hash=name, created_at=ends - cookie, **owner_fields)
        Session.objects.create(session_key=name, session_data="", expire_date=ends)

    assert expired_sessions.delete_expired_sessions(world.now) == 3
    assert list(EntryCode.objects.values_list("code_hash", flat=True)) == ["kept"]
    assert list(WorkspaceSession.objects.values_list("token_hash", flat=True)) == ["kept"]
    assert list(Session.objects.values_list("session_key", flat=True)) == ["kept"]
    assert expired_sessions.delete_expired_sessions(world.now) == 0
