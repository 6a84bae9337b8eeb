"""Prepare the people, tokens and work of a site that is attacked."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.fault_injection.job_ledger import JobLedger
from benchmarks.harness.conditions import rows, wait_until
from benchmarks.harness.installation import ROOT, Installation
from benchmarks.trust_parts.attacks.browser import Browser, HttpAnswer, Program
from benchmarks.trust_parts.attacks.registry import control
from tools.service_environment import environment_of_site

PASSWORD = "a long and private sentence"
WAIT_SECONDS = 120.0
POOL = "faults"


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Person:
    """A person of the site with the text of an API token that has all scopes."""

    row: Any
    program: Program

    @property
    def name(self) -> str:
        return str(self.row.username)


@dataclass
class Workspace:
    """A browser in a workspace, and the link with which it entered."""

    browser: Browser
    link: Any


@dataclass
class AttackTarget:
    """A running site, its people, and a notebook of the first member."""

    site: Installation
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    # -- people -----------------------------------------------------------------------------------

    def person(self, team: str = "", role: str = "", lead: bool = False) -> Person:
        """Create a person with a password. ``role`` is empty, "operator", "finance" or "auditor"."""
        from portal.models import Membership, User
        from scheduler.models import Team

        name = f"person{next(self._numbers)}"

        def create() -> Any:
            row = User.objects.create(
                username=name, email=f"{name}@example.org", **({role: True} if role else {})
            )
            row.set_password(PASSWORD)
            row.save(update_fields=["password"])
            if team:
                Membership.objects.create(
                    user=row,
                    team=Team.objects.get(slug=team),
                    role="lead" if lead else "member",
                    created_at=now(),
                )
            return row

        row = rows(create)
        return Person(row, Program(self.site.port, self.token_of(row)))

    def token_of(self, row: Any, *scopes: str, **more: Any) -> str:
        """Create a token of a person. Without ``scopes`` it has all."""
        from portal.services.people import api_tokens

        given = {"scopes": scopes or None, "name": f"token{next(self._numbers)}", **more}
        return str(rows(lambda: api_tokens.create_token(actor=row, now=now(), **given))[1])

    @cached_property
    def operator(self) -> Person:
        return self.person(role="operator")

    @cached_property
    def member(self) -> Person:
        """Return a member of the team that owns the work."""
        return self.person("faults")

    @cached_property
    def stranger(self) -> Person:
        """Return a member of another team, which has nothing in common with the first one."""
        from scheduler.models import Project, Team

        def create() -> None:
            team = Team.objects.create(slug="others", name="Others", tag="O", created_at=now())
            Project.objects.create(team=team, slug="others", name="Others", created_at=now())

        rows(create)
        return self.person("others")

    def browser(self) -> Browser:
        return Browser(self.site.port)

    def signed_in(self, person: Person) -> Browser:
        """Return a browser in which a person is signed in."""
        browser = self.browser()
        answer = browser.sign_in(person.name, PASSWORD)
        control(answer.status == 302 and browser.is_signed_in(), f"{person.name} signs in: {answer.status}")
        return browser

    def with_scopes(self, person: Person, *scopes: str) -> Program:
        return Program(self.site.port, self.token_of(person.row, *scopes))

    def run_in_database(self, change: Callable[[], Any]) -> Any:
        """Change or read rows past the portal."""
        return rows(change)

    # -- work -------------------------------------------------------------------------------------

    def job(self, **also: Any) -> dict[str, Any]:
        """Return the body of a request for a job of the team."""
        usual = {"project": "faults/faults", "pool": POOL, "name": "a job", "command": "true", "units": 1}
        return {**usual, "max_runtime_seconds": 600, **also}

    def output_of(self, command: str, host: str) -> str:
        """Run a command as a job on a host, and return what it printed."""
        body = self.job(command=command, labels_required={"name": host})
        made = self.member.program.made("jobs/", body)
        self.wait(
            lambda: self.member.program.get(f"workloads/{made['id']}/").json()["state"] == "ended", "ends"
        )
        answer: HttpAnswer | None = None

        def printed() -> bool:
            nonlocal answer
            answer = self.member.program.get(f"workloads/{made['id']}/logs/")
            return answer.status == 200 and "attack script ends" in answer.text

        self.wait(printed, "its output arrives")
        assert answer is not None
        return answer.text

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        wait_until(condition, WAIT_SECONDS, what, every=0.2)

    @cached_property
    def notebook(self) -> str:
        """Return the id of a running notebook of the member."""
        return self.notebook_of(self.member)

    def notebook_of(self, person: Person) -> str:
        """Start a notebook of a person, and return its id when it answers."""
        body = {
            "project": "faults/faults",
            "pool": POOL,
            "name": "lab",
            "units": 1,
            "max_runtime_seconds": 7200,
        }
        made = str(person.program.made("notebooks/", body)["id"])
        self.wait(lambda: self._is_ready(made), "a notebook answers")
        return made

    def _is_ready(self, workload: str) -> bool:
        from scheduler.models import Run

        found = Run.objects.filter(workload__public_id=workload, state="running", ready_at__isnull=False)
        return bool(rows(found.exists))

    def entry_link(self, browser: Browser, notebook: str = "") -> Any:
        """Return an unused link to a notebook, by default the member's, for its owner's browser."""
        answer = browser.form(f"/notebooks/{notebook or self.notebook}/open/", {})
        control(answer.status in (302, 303), f"the portal gives a link: {answer.status} {answer.text[:200]}")
        return urlsplit(answer.location)

    def program_link(self, program: Program) -> Any:
        """Return an unused link to the notebook for an API token."""
        return urlsplit(str(program.made(f"workloads/{self.notebook}/open/", {})["url"]))

    def enter(self, link: Any) -> Workspace:
        """Enter a workspace with a link."""
        inside = self.workspace_browser(link)
        answer = inside.get(f"{link.path}?{link.query}")
        control(answer.status == 303, f"the link opens the workspace: {answer.status}")
        control(inside.get("/api/status").status == 200, "the workspace answers")
        return Workspace(inside, link)

    def workspace_browser(self, link: Any) -> Browser:
        """Return a browser without cookies at the origin of a workspace."""
        return Browser(self.site.port + 1, link.netloc)

    @property
    def edge_port(self) -> int:
        return self.site.port + 1

    @property
    def ledger(self) -> JobLedger:
        return JobLedger(self.site)

    # -- files and commands -----------------------------------------------------------------------

    def logs(self) -> str:
        """Return the logs of all services and agents."""
        found = [*(self.site.folder / "site" / "logs").glob("*.log*"), *self.site.folder.glob("*.log")]
        return "\n".join(path.read_text(errors="replace") for path in found)

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a management command on the site."""
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=environment_of_site(self.site.folder / "site"),
            capture_output=True,
            text=True,
        )

    def identity_files(self) -> list[Path]:
        return list((self.site.folder / "agents").glob("*/identity.json"))


def link_path(url: str) -> str:
    """Return path and query of a URL."""
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def text_between(text: str, pattern: str) -> str:
    """Return the first group of a pattern; empty if it is not found."""
    found = re.search(pattern, text)
    return found[1] if found else ""


def rows_with(table: str, text: str) -> int:
    """Return the number of rows of a table that contain a text, also as bytes."""
    from django.db import connection

    patterns = [f"%{text}%", f"%{text.encode().hex()}%"]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT count(*) FROM {table} AS r WHERE r::text LIKE %s OR r::text LIKE %s", patterns
        )
        return int(cursor.fetchone()[0])
