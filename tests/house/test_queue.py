"""The queue: every process and thread sends to the same one, every tick exists, and tasks are short."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import celery
from django.conf import settings

from config.beat_scheduler import ClockJumpSafeScheduler
from config.celery import TASK_TIME_LIMIT_SECONDS, VISIBILITY_TIMEOUT_SECONDS, app


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
        assert entry["options"]["expires"] >= entry["schedule"], (
            "a tick may not pile up behind a worker that was away"
        )


def test_no_task_may_run_as_long_as_the_broker_waits_before_it_starts_it_again() -> None:
    assert app.conf.task_soft_time_limit < TASK_TIME_LIMIT_SECONDS < VISIBILITY_TIMEOUT_SECONDS
    assert app.conf.broker_transport_options["visibility_timeout"] == VISIBILITY_TIMEOUT_SECONDS


def test_tasks_survive_a_killed_worker_and_are_never_run_in_place() -> None:
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost
    assert not app.conf.task_always_eager


def test_ticks_go_on_when_the_clock_is_set_back(tmp_path: Path) -> None:
    scheduler = ClockJumpSafeScheduler(app, schedule_filename=str(tmp_path / "schedule"), lazy=True)
    scheduler.setup_schedule()
    try:
        later = app.now() + timedelta(hours=1)
        for entry in scheduler.schedule.values():
            entry.last_run_at = later  # it ran before the clock was set back
        scheduler.reset_after_clock_jump(5000.0)
        sweep = scheduler.schedule["sweep"]
        assert sweep.is_due().next > 3000, "as Celery has it, nothing ticks for an hour"
        scheduler.reset_after_clock_jump(5000.5)
        assert sweep.is_due().next > 3000, "clocks are kept right by less"
        scheduler.reset_after_clock_jump(1400.0)
        assert all(entry.last_run_at <= app.now() for entry in scheduler.schedule.values())
        assert scheduler.schedule["sweep"].is_due().next <= 2.0
    finally:
        scheduler.close()
