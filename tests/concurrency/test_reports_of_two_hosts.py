"""Test reports that two hosts send at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from agent.protocol import HomeSeen, HomesSeen
from scheduler.models import Host, Storage, Volume
from scheduler.sync.home_volumes import store_homes
from tests.concurrency.conftest import GUARDED, Meeting, race
from tests.world import World

pytestmark = pytest.mark.django_db(transaction=True)


def test_two_hosts_may_report_a_new_storage_at_once(world: World) -> None:
    """Check that no statement fails: PostgreSQL would log the failure, although the report is stored."""
    at = world.now.timestamp()
    homes = HomesSeen(storage="store1", listed_at=at, homes=[HomeSeen(name="ada", bytes=1, measured_at=at)])
    meeting, failed = Meeting(2, GUARDED), list[DatabaseError]()

    def meet_before_the_insert(execute: Callable[..., Any], statement: str, *rest: Any) -> Any:
        if statement.startswith(f'INSERT INTO "{Storage._meta.db_table}"'):
            meeting.wait()
        try:
            return execute(statement, *rest)
        except DatabaseError as error:
            failed.append(error)
            raise

    def report(host: Host) -> None:
        with connection.execute_wrapper(meet_before_the_insert), transaction.atomic():
            store_homes(host, homes, world.now)

    assert race([lambda: report(world.hosts["alpha"]), lambda: report(world.hosts["beta"])]) == [None, None]
    assert failed == []
    assert Storage.objects.count() == Volume.objects.count() == 1
    assert Host.objects.filter(storage__key="store1").count() == 2
