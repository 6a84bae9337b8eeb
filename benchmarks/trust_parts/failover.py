"""Kill one of two web, edge and engine processes behind nginx, and measure until work is placed again."""

from __future__ import annotations

import os
import signal
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from benchmarks.fault_injection.job_ledger import BackgroundLoad
from benchmarks.fault_injection.process_faults import MAX_WAIT_SECONDS, FaultContext, cancel, children
from benchmarks.harness.conditions import ConditionTimeout, rows, wait_until
from benchmarks.harness.installation import GPUS
from benchmarks.harness.redundant_site import RedundantSite
from benchmarks.trust_parts.attacks.target import PASSWORD
from benchmarks.trust_parts.work import context_of, count_double, count_lost, start_jobs

HOSTS = 2
FREE_UNITS = GPUS - 1  # of each host, because ``start_jobs`` starts one lasting job on each
LEASE_SECONDS = 60  # longer than the takeover of an edge on a busy machine
SETTLE_SECONDS = 120


@dataclass
class SignedInPerson:
    """A browser that is signed in through nginx."""

    url: str
    trust: ssl.SSLContext
    cookies: CookieJar = field(default_factory=CookieJar)

    def __post_init__(self) -> None:
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=self.trust), urllib.request.HTTPCookieProcessor(self.cookies)
        )

    def sign_in(self, name: str) -> None:
        page = f"{self.url}/accounts/login/"
        self._opener.open(page, timeout=30).read()
        csrf = next(cookie.value for cookie in self.cookies if cookie.name.endswith("csrf"))
        fields = {"login": name, "password": PASSWORD, "csrfmiddlewaretoken": str(csrf)}
        request = urllib.request.Request(page, urllib.parse.urlencode(fields).encode(), {"Referer": page})
        self._opener.open(request, timeout=30).read()

    def is_signed_in(self) -> bool:
        """Return True if the session is accepted. Raises OSError if nothing answers."""
        try:
            with self._opener.open(f"{self.url}/api/v1/me/", timeout=10) as answer:
                return int(answer.status) == 200
        except urllib.error.HTTPError as error:
            if error.code == 401:
                return False
            raise


def _first_web(site: RedundantSite) -> str:
    return "web-1"


def serving_edge_of(site: RedundantSite) -> str:
    """Return the name of the edge process that serves."""
    from portal.redis_state.serving_edge import serving_edge

    serving = serving_edge()
    return next(name for name in ("edge-1", "edge-2") if serving.endswith(f":{site.ports[name]}"))


def leading_engine() -> str:
    """Return the name of the leading engine in the database."""
    from scheduler.models import Leader

    return str(rows(lambda: Leader.objects.get().holder))


def measure_failover(folder: Path) -> dict[str, Any]:
    """Kill the first web, the serving edge and the leading engine in turn, under load.

    Return the longest time from a kill until a job that was submitted afterwards has started. Raises
    ConditionTimeout if a person is signed out, if running work does not continue, or if a job is lost.
    """
    site = RedundantSite(folder, HOSTS, LEASE_SECONDS)
    try:
        site.start()
        context = context_of(site)
        person = _person(site)
        jobs = start_jobs(context, site.hosts)
        times = {}
        with BackgroundLoad(context.ledger, context.rng, per_second=0.2, units=(FREE_UNITS,)):
            # Each is found just before its kill, because the leader may change with an earlier kill.
            for find in (_first_web, serving_edge_of, _leading):
                victim = find(site)
                times[victim] = _kill(site, context, victim, person)
                print(f"  {victim} was killed: a new job started after {times[victim]:.1f} s", flush=True)
        if lost := count_lost(context, jobs, " after the processes were killed"):
            raise ConditionTimeout(f"all running work continues: {lost} jobs do not")
        for job in jobs:
            cancel(context, job.workload)
        problems = [problem for found in context.ledger.settle(SETTLE_SECONDS).values() for problem in found]
        if problems or count_double(context):
            raise ConditionTimeout(f"no job is lost and none runs twice: {problems}")
        return {"failover_s": round(max(times.values()), 2)}
    finally:
        site.stop()


def _leading(site: RedundantSite) -> str:
    """Return the name of the engine process whose child leads."""
    holder = leading_engine()
    for name in ("engine-1", "engine-2"):
        pids = [site.pid(name), *children(site.pid(name))]
        if any(str(pid) in holder for pid in pids):
            return name
    raise ConditionTimeout(f"one of the two engines leads: {holder!r} leads")


def _person(site: RedundantSite) -> SignedInPerson:
    from portal.models import User

    def set_password() -> None:
        row = User.objects.get(username="member")
        row.set_password(PASSWORD)
        row.save(update_fields=["password"])

    rows(set_password)
    person = SignedInPerson(site.url, site.trust())
    person.sign_in("member")
    if not person.is_signed_in():
        raise ConditionTimeout("a person signs in through nginx")
    return person


def _kill(site: RedundantSite, context: FaultContext, victim: str, person: SignedInPerson) -> float:
    leader = leading_engine()
    pids = children(site.pid(victim))
    site.processes.kill(victim)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    took = context.ledger.probe(began, MAX_WAIT_SECONDS)
    if not person.is_signed_in():
        raise ConditionTimeout(f"a person stays signed in after {victim} was killed")
    if victim.startswith("engine") and leading_engine() == leader:
        raise ConditionTimeout("the other engine leads")
    if victim.startswith("edge"):
        wait_until(lambda: serving_edge_of(site) != victim, MAX_WAIT_SECONDS, "the other edge serves")
    wait_until(lambda: site.alive() == len(site.hosts), MAX_WAIT_SECONDS, "every host is alive")
    if ended := site.processes.ended():
        raise ConditionTimeout(f"no other process ends: {ended}")
    return took
