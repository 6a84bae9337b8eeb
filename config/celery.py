"""Configure Celery: its queues, the routes of tasks and the schedule of periodic tasks.

A task is only a signal. Its arguments are ids at most, and all state is in the database. Tasks are idempotent
and usually take less than half a minute. The broker delivers an unacknowledged task again after
`visibility_timeout`, so the time limit of tasks is shorter than this timeout.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task
from kombu.entity import Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from django.conf import settings
from django.db.utils import InterfaceError, OperationalError

from config.worker_report import WorkerReport

TASK_TIME_LIMIT_SECONDS = 50  # a worker process whose task takes longer is killed and replaced
VISIBILITY_TIMEOUT_SECONDS = 60  # a task not acknowledged by then is delivered to another worker


class DatabaseRetryTask(Task):  # type: ignore[misc]
    """A task that Celery retries while the database is unavailable."""

    abstract = True
    autoretry_for = (OperationalError, InterfaceError)
    max_retries = 5
    retry_backoff = 1
    retry_backoff_max = 8
    retry_jitter = True


def _periodic(seconds: float, queue: str, **options: Any) -> dict[str, Any]:
    """Return a schedule entry that sends a task to ``queue`` every ``seconds``.

    The task expires if no worker has started it when the next one is due.
    """
    return {"schedule": seconds, "options": {"queue": queue, "expires": max(seconds, 2.0), **options}}


app = Celery("gpupool", task_cls=DatabaseRetryTask)
# Without a default application, threads of the web and the edge would send tasks to an unconfigured one.
app.set_default()
app.conf.update(
    broker_url=settings.ENVIRONMENT.broker_url,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "visibility_timeout": VISIBILITY_TIMEOUT_SECONDS,
        # Deliver unacknowledged tasks again soon; kombu's default is only every 100 s.
        "unacked_restore_interval": 2,
        "unacked_restore_throttle": 1,
        "global_keyprefix": "gpupool:celery:",
        "socket_keepalive": True,
        "health_check_interval": 10,
    },
    result_backend=None,
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_acks_on_failure_or_timeout=True,
    task_time_limit=TASK_TIME_LIMIT_SECONDS,
    task_soft_time_limit=TASK_TIME_LIMIT_SECONDS - 15,
    task_serializer="json",
    accept_content=["json"],
    task_create_missing_queues=False,
    task_default_queue="default",
    task_queues=[Queue(name) for name in ("engine", "telemetry", "money", "notices", "default")],
    task_routes={
        "scheduler.tasks.*": {"queue": "engine"},
        "telemetry.tasks.charge": {"queue": "money"},
        "telemetry.tasks.study_capacity": {"queue": "default"},
        "telemetry.tasks.*": {"queue": "telemetry"},
        "portal.tasks.notices": {"queue": "notices"},
        "portal.tasks.send_notices": {"queue": "notices"},
        "portal.tasks.*": {"queue": "default"},
    },
    worker_prefetch_multiplier=1,
    worker_soft_shutdown_timeout=5.0,
    worker_enable_soft_shutdown_on_idle=False,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    worker_proc_alive_timeout=30.0,
    enable_utc=True,
    timezone="UTC",
    beat_max_loop_interval=1.0,
    beat_scheduler="config.beat_scheduler:ClockJumpSafeScheduler",
    beat_schedule={
        "sweep": {"task": "scheduler.tasks.sweep", **_periodic(2.0, "engine")},
        "watch hosts": {"task": "scheduler.tasks.watch_hosts", **_periodic(2.0, "engine")},
        "reservation clock": {"task": "scheduler.tasks.reservation_clock", **_periodic(2.0, "engine")},
        "geometries": {"task": "scheduler.tasks.keep_geometries", **_periodic(5.0, "engine")},
        "diagnostics": {"task": "scheduler.tasks.keep_diagnostics", **_periodic(5.0, "engine")},
        "quota hours": {"task": "scheduler.tasks.count_quota_hours", **_periodic(60.0, "engine")},
        "unserved reservations": {"task": "scheduler.tasks.check_reservations", **_periodic(30.0, "default")},
        "forget old": {"task": "scheduler.tasks.forget_old", **_periodic(600.0, "default")},
        "ingest": {"task": "telemetry.tasks.ingest_stream", **_periodic(1.0, "telemetry")},
        "dcgm": {"task": "telemetry.tasks.scrape_dcgm", **_periodic(5.0, "telemetry")},
        "health": {"task": "telemetry.tasks.health", **_periodic(5.0, "telemetry")},
        "roll up": {"task": "telemetry.tasks.roll_up", **_periodic(30.0, "telemetry")},
        "reports of runs": {"task": "telemetry.tasks.report_runs", **_periodic(60.0, "telemetry")},
        "charge": {"task": "telemetry.tasks.charge", **_periodic(60.0, "money")},
        "alerts": {"task": "telemetry.tasks.alerts", **_periodic(60.0, "telemetry")},
        "budgets": {"task": "telemetry.tasks.budgets", **_periodic(60.0, "telemetry")},
        "rehearse close": {"task": "telemetry.tasks.rehearse_close", **_periodic(600.0, "telemetry")},
        "capacity studies": {"task": "telemetry.tasks.study_capacity", **_periodic(5.0, "default")},
        "pack samples": {"task": "telemetry.tasks.pack_samples", **_periodic(60.0, "telemetry")},
        "partitions": {"task": "telemetry.tasks.partitions", **_periodic(600.0, "telemetry")},
        "notices": {"task": "portal.tasks.notices", **_periodic(5.0, "notices")},
        "send notices": {"task": "portal.tasks.send_notices", **_periodic(5.0, "notices")},
        "idle cull": {"task": "portal.tasks.idle_cull", **_periodic(10.0, "default")},
        "isolation of new pools": {"task": "portal.tasks.demand_isolation", **_periodic(10.0, "default")},
        "settle leavers": {"task": "portal.tasks.settle_leavers", **_periodic(30.0, "default")},
        "expire submissions": {"task": "portal.tasks.expire_submissions", **_periodic(10.0, "default")},
        "seal audit": {"task": "portal.tasks.seal_audit", **_periodic(60.0, "default")},
        "check audit": {"task": "portal.tasks.check_audit", **_periodic(60.0, "default")},
        "sync directories": {"task": "portal.tasks.sync_directories", **_periodic(600.0, "default")},
        "unusual spend": {"task": "portal.tasks.unusual_spend", **_periodic(300.0, "default")},
        "warm utilisation": {"task": "portal.tasks.warm_utilisation", **_periodic(60.0, "default")},
        "forget expired": {"task": "portal.tasks.forget_expired", **_periodic(600.0, "default")},
    },
)
app.steps["worker"].add(WorkerReport)
app.autodiscover_tasks(["scheduler", "telemetry", "portal"])
