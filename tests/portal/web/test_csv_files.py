"""Test that names which begin like formulas are text in every CSV file of the portal."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent
from portal.reads.utilisation.answers import ANSWERS
from portal.web.money.charges.tree_address import GROUPINGS
from scheduler.models import Gpu, Pool, Project, Team, Workload
from tests.portal.charged_january import MONTH, charge_of, charged
from tests.portal.web.work_samples import make_waiting
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db

FORMULA = "=HYPERLINK(1)"
NUMBER = re.compile(r"[-+]?[0-9.]+")


@pytest.fixture
def formulas(world: World) -> World:
    """Rename all teams, projects and pools to formulas. The test makes the charges after this."""
    for rows in (Team.objects, Project.objects, Pool.objects):
        for row in rows.all():
            rows.filter(pk=row.pk).update(name=f"{FORMULA}{row.pk}")
    return world


def cells(download: Any) -> list[str]:
    assert download.status_code == 200
    text = b"".join(download).decode()
    return [cell for row in csv.reader(io.StringIO(text)) for cell in row]


def addresses(work: Workload) -> list[tuple[str, dict[str, str]]]:
    """Return the address and the query of every CSV file."""
    chargeback, period = reverse("chargeback"), {"start": "2026-01-01", "end": "2026-02-01"}
    groups = [(chargeback, {"month": MONTH, "format": "csv", "by": by}) for by in GROUPINGS]
    lines = (chargeback, {"month": f"{work.submitted_at:%Y-%m}", "format": "csv", "workload": str(work.pk)})
    exports = [(reverse("export", args=[MONTH]), {"kind": kind}) for kind in ("statement", "lines")]
    charts = [
        (reverse("utilisation-csv", args=[chart]), period | {"by": by})
        for chart in ANSWERS
        for by in ("team", "project")
    ]
    lists = [
        (reverse(name), {"format": "csv"}) for name in ("audit", "jobs", "queue", "notebooks", "volumes")
    ]
    figures = [(reverse(name, args=[MONTH]), {}) for name in ("chargeback-days", "chargeback-changes")]
    return [*groups, lines, *exports, *charts, *lists, *figures]


def test_no_cell_of_any_file_begins_like_a_formula(formulas: World, charged: Workload) -> None:
    world, escaped = formulas, set()
    work = make_waiting(world, world.vision, FORMULA)
    charge_of(work, Gpu.objects.earliest("pk"))
    AuditEvent.objects.create(at=world.now, actor_name="x", via="web", verb="x", target="x", why=FORMULA)
    world.finance.auditor = True
    world.finance.save()
    client = Client()
    client.force_login(world.finance)
    for address, query in addresses(work):
        for cell in cells(client.get(address, query)):
            assert cell[:1] not in tuple("=+-@\t\r") or NUMBER.fullmatch(cell), (address, cell)
            if cell.startswith(f"'{FORMULA}"):
                escaped.add(address)
    expected = {reverse(name) for name in ("chargeback", "audit", "jobs", "queue")}
    assert expected <= escaped
