"""Submit the work and reservations with which the demo starts. They are submitted through the
usual services.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from demo import job_scripts
from demo.organisation import A100, DEMO_HOSTS, H100, TIME_ZONE
from portal.models import User
from portal.services.calendar import reservations
from portal.services.work import launch
from scheduler.models import Gpu, Pool, Project, Workload

HOUR_SECONDS = 3600


@dataclass(frozen=True)
class DemoJob:
    user: str
    project: str
    pool: str
    name: str
    units: int
    model: str
    hours: int
    utilisation: int
    profile: str = ""
    priority: str = "normal"


# The jobs show guaranteed, borrowed and waiting work, a MIG slice, and a waiting job in a static pool. All
# H100s are held. mri-pretrain uses the guarantee of the team Medical imaging. vessel-sweep borrows four more
# H100s, and is preempted when the team Protein folding requests its guarantee.
INITIAL_JOBS = (
    DemoJob("imaging-lead", "mri-foundation", "shared", "mri-pretrain", 8, H100, 48, 88),
    DemoJob("folding-member", "binder", "shared", "binder-sweep", 2, H100, 12, 91),
    DemoJob("climate-member", "era5", "shared", "era5-tune", 2, H100, 20, 64),
    DemoJob("researcher", "vessel-seg", "shared", "vessel-sweep", 4, H100, 6, 73),
    DemoJob("folding-member", "fold-md", "shared", "af-tune-full", 8, H100, 12, 91),
    DemoJob("climate-lead", "nowcast", "shared", "nowcast-eval", 3, A100, 8, 37, priority="low"),
    DemoJob("climate-member", "nowcast", "climate-lab", "storm-1km", 6, A100, 30, 79),
    DemoJob("folding-member", "fold-md", "shared", "md-short", 1, A100, 3, 0, profile="1g.10gb"),
    DemoJob("climate-lead", "era5", "climate-lab", "era5-full", 8, A100, 24, 80),
)
# user, project, name, GPUs, model, days from today, first and last hour (local time), reason
INITIAL_RESERVATIONS = (
    (
        "imaging-lead",
        "mri-foundation",
        "fold-5 benchmark",
        4,
        H100,
        1,
        19,
        23,
        "Reproducible timing for the paper",
    ),
    ("folding-member", "binder", "workshop", 2, H100, 2, 10, 16, "Hands-on course, 12 people"),
    ("climate-lead", "era5", "season run", 6, H100, 3, 8, 20, "Yearly reanalysis, needs six at once"),
)


def all_hosts_reported() -> bool:
    """Return True if every host of the demo has reported its GPUs."""
    names = [host.name for host in DEMO_HOSTS]
    reported = Gpu.objects.filter(retired_at=None, host__name__in=names).values("host").distinct()
    return reported.count() == len(DEMO_HOSTS)


def submit_initial_work(now: datetime) -> int:
    """Submit the first jobs and reservations, and return how many were submitted.

    Return 0 if there is work already. Reservations above the pool's threshold wait for an operator.
    """
    if Workload.objects.filter(simulated=False).exists():
        return 0
    users = {user.username: user for user in User.objects.all()}
    projects = {project.slug: project for project in Project.objects.all()}
    pools = {pool.slug: pool for pool in Pool.objects.all()}
    for number, job in enumerate(INITIAL_JOBS):
        launch.submit_job(
            actor=users[job.user],
            via="program",
            now=now + timedelta(milliseconds=number),
            project=projects[job.project],
            pool=pools[job.pool],
            name=job.name,
            command=job_scripts.training_command(steps=job.hours * 1200, utilisation=job.utilisation),
            units=job.units,
            models=[job.model],
            profile=job.profile,
            type="training",
            priority=job.priority,
            preemptible=True,
            max_runtime_seconds=job.hours * HOUR_SECONDS,
        )
    today = now.astimezone(ZoneInfo(TIME_ZONE)).date()
    for user, project, name, units, model, days, first, last, why in INITIAL_RESERVATIONS:
        day = today + timedelta(days=days)
        start, end = (datetime.combine(day, time(hour), ZoneInfo(TIME_ZONE)) for hour in (first, last))
        reservations.request_reservation(
            actor=users[user],
            via="program",
            now=now,
            project=projects[project],
            pool=pools["shared"],
            name=name,
            units=units,
            models=[model],
            start=start,
            end=end,
            why=why,
            may_exceed_guarantee=units > 4,
        )
    return len(INITIAL_JOBS) + len(INITIAL_RESERVATIONS)
