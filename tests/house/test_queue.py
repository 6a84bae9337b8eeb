"""Test the task queue.

All processes and threads use the same broker, every scheduled task exists, and tasks are short.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import celery
from django.conf import settings

from config.beat_scheduler import ClockJumpSafeScheduler
from config.celery import TASK_TIME_LIMIT_SECONDS, VISIBILITY_TIMEOUT_SECONDS, app


def test_every_thread_sends_to_the_configured_broker() -> None:
    """Check a thread that never imported the queue, as in the web or edge process."""
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(celery.current_app.conf.broker_url))
    thread.start()
    thread.join()
    assert seen == [settings.ENVIRONMENT.broker_url]


def test_every_scheduled_entry_has_an_existing_task_and_queue() -> None:
    app.loader.import_default_modules()
    for name, entry in app.conf.beat_schedule.items():
        assert entry["task"] in app.tasks, name
        assert entry["options"]["queue"] in {queue.name for queue in app.conf.task_queues}, name
        assert entry["options"]["expires"] >= entry["schedule"], (
            "ticks must expire instead of piling up while a worker is down"
        )


def test_task_time_limits_are_below_the_visibility_timeout() -> None:
    assert app.conf.task_soft_time_limit < TASK_TIME_LIMIT_SECONDS < VISIBILITY_TIMEOUT_SECONDS
    assert app.conf.broker_transport_options["visibility_timeout"] == VISIBILITY_TIMEOUT_SECONDS


def test_the_rehearsal_of_a_close_may_take_minutes_and_is_not_delivered_twice() -> None:
    app.loader.import_default_modules()
    task = app.tasks["telemetry.tasks.rehearse_close"]
    assert task.time_limit > task.soft_time_limit > VISIBILITY_TIMEOUT_SECONDS
    assert task.acks_late is False


def test_tasks_survive_a_killed_worker_and_never_run_inline() -> None:
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost
    assert not app.conf.task_always_eager


def test_scheduled_tasks_continue_after_the_clock_is_set_back(tmp_path: Path) -> None:
    scheduler = ClockJumpSafeScheduler(app, schedule_filename=str(tmp_path / "schedule"), lazy=True)
    scheduler.setup_schedule()
    try:
        later = app.now() + timedelta(hours=1)
        for entry in scheduler.schedule.values():
            entry.last_run_at = later  # the task ran before the clock was set back
        scheduler.reset_after_clock_jump(5000.0)
        sweep = scheduler.schedule["sweep"]
        assert sweep.is_due().next > 3000, "with Celery's own behaviour nothing would run for an hour"
        scheduler.reset_after_clock_jump(5000.5)
        assert sweep.is_due().next > 3000, "small clock adjustments are ignored"
        scheduler.reset_after_clock_jump(1400.0)
        assert all(entry.last_run_at <= app.now() for entry in scheduler.schedule.values())
        assert scheduler.schedule["sweep"].is_due().next <= 2.0
    finally:
        scheduler.close()
