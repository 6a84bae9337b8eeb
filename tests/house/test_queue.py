"""The queue: every process and thread sends to the same one, every tick exists, and tasks are short."""

from __future__ import annotations

import threading

import celery
from django.conf import settings

from config.celery import LONGEST_TASK, VISIBILITY, app


def test_every_thread_sends_to_our_queue() -> None:
    """A thread of the web or edge process that never imported the queue uses it all the same."""
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(celery.current_app.conf.broker_url))
    thread.start()
    thread.join()
    assert seen == [settings.ENVIRONMENT.broker_url]


def test_every_tick_names_a_task_that_exists_and_a_queue_that_a_worker_reads() -> None:
    app.loader.import_default_modules()
    for name, entry in app.conf.beat_schedule.items():
        assert entry["task"] in app.tasks, name
        assert entry["options"]["queue"] in {queue.name for queue in app.conf.task_queues}, name
        assert entry["options"]["expires"] >= entry["schedule"], "a tick may not pile up behind a worker that was away"


def test_no_task_may_run_as_long_as_the_broker_waits_before_it_starts_it_again() -> None:
    assert app.conf.task_soft_time_limit < LONGEST_TASK < VISIBILITY
    assert app.conf.broker_transport_options["visibility_timeout"] == VISIBILITY


def test_tasks_survive_a_killed_worker_and_are_never_run_in_place() -> None:
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost
    assert not app.conf.task_always_eager
