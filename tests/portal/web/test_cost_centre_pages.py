"""Test the pages of cost centres."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from portal.reads.money.unmapped import unmapped_payers
from scheduler.models import Workload
from telemetry.models import CostCentre, CostCentreShare
from telemetry.money.charges import charge_all_gpus
from tests.portal.charged_january import START, charged
from tests.portal.web.work_samples import signed_in
from tests.telemetry.rows import directory
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
SPLIT = {
    "payer": "project:vision/vision-main",
    "valid_from": "2026-01-01T00:00",
    "code_1": "CC-1",
    "percent_1": "75",
    "code_2": "CC-2",
    "percent_2": "25",
}


def test_a_split_is_saved_after_its_effect_is_shown(world: World, charged: Workload) -> None:
    directory("CC-1", "CC-2")
    client = signed_in(world.finance)
    page = client.post(reverse("cost-centre-split"), SPLIT)
    text = " ".join(page.content.decode().split())
    assert page.status_code == 200 and not CostCentreShare.objects.filter(code="CC-1").exists()
    assert "CC-vision" in text and "75.00" in text and "25.00" in text
    assert {amount.code: str(amount.moved) for amount in page.context["amounts"]} == {
        "CC-1": "75.00",
        "CC-2": "25.00",
        "CC-vision": "-100.00",
    }
    saved = client.post(reverse("cost-centre-split"), SPLIT | {"verb": "save", "why": "agreed"})
    assert saved.status_code == 302
    assert "CC-1 75 %, CC-2 25 %" in client.get(reverse("cost-centres")).content.decode()
    charge_all_gpus(now=START + timedelta(days=41))
    page = client.get(reverse("chargeback"), {"month": "2026-01"})
    assert "CC-1" in page.content.decode()


def test_a_wrong_split_shows_its_problem(world: World) -> None:
    directory("CC-1", "CC-2")
    client = signed_in(world.finance)
    page = client.post(reverse("cost-centre-split"), SPLIT | {"percent_2": "20"})
    assert page.status_code == 400
    assert "shares sum to 95.00 %; allowed: exactly 100 %." in page.content.decode()


def test_payers_without_a_cost_centre_come_first_with_the_people_who_must_act(world: World) -> None:
    page = signed_in(world.finance).get(reverse("cost-centres")).content.decode()
    lead, finance = world.vision.lead.username, world.finance.username
    sentence = f"{lead} (lead of Vision) says which cost centre pays. Finance ({finance}) enters it."
    assert page.index("Without a cost centre") < page.index("Who pays") and sentence in page
    names = {row.name for row in unmapped_payers(world.language.member, world.now)}
    assert names == {world.language.project.name}


def test_one_cost_centre_shows_its_history_and_its_months(world: World, charged: Workload) -> None:
    directory("CC-vision", name="Vision research", purchase_order="PO-7")
    client = signed_in(world.finance)
    address = reverse("cost-centre", args=["CC-vision"])
    page = " ".join(client.get(address).content.decode().split())
    assert "CC-vision Vision research" in page and "PO-7" in page
    assert world.vision.project.name in page and "January 2026" in page and "100.00" in page
    assert "January 2026" not in signed_in(world.vision.lead).get(address).content.decode()
    changed = client.post(address, {"verb": "change", "name": "Imaging", "postal_address": "Street 1"})
    assert changed.status_code == 302
    assert CostCentre.objects.get(code="CC-vision").name == "Imaging"
    refused = client.post(address, {"verb": "retire", "retired_from": "2126-01-01T00:00"})
    assert refused.status_code == 400 and "it still pays for vision/vision-main" in refused.content.decode()


def test_an_entry_is_added_retired_and_restored(world: World) -> None:
    client = signed_in(world.finance)
    assert client.post(reverse("cost-centres"), {"code": "CC-9", "name": "New"}).status_code == 302
    assert client.post(reverse("cost-centres"), {"code": "CC-9"}).status_code == 400
    address = reverse("cost-centre", args=["CC-9"])
    assert client.post(address, {"verb": "retire", "retired_from": "2126-01-01T00:00"}).status_code == 302
    assert CostCentre.objects.get().retired_from is not None
    assert client.post(address, {"verb": "restore"}).status_code == 302
    assert CostCentre.objects.get().retired_from is None
    assert signed_in(world.operator).post(reverse("cost-centres"), {"code": "CC-8"}).status_code == 403


def test_a_file_is_imported_after_its_lines_are_shown(world: World) -> None:
    client = signed_in(world.finance)
    file = SimpleUploadedFile("centres.csv", "\ufeffcode,name\nCC-1,Médical\n".encode())
    page = client.post(reverse("cost-centre-import"), {"file": file})
    assert page.status_code == 200 and "1 new, 0 changed" in page.content.decode()
    assert not CostCentre.objects.exists()
    done = client.post(reverse("cost-centre-import"), {"csv": page.context["text"], "verb": "import"})
    assert done.status_code == 302 and CostCentre.objects.get().name == "Médical"
    wrong = SimpleUploadedFile("centres.csv", b"code\n\x81\n")  # neither UTF-8 nor Latin-1
    assert client.post(reverse("cost-centre-import"), {"file": wrong}).status_code == 400
    page = client.post(reverse("cost-centre-import"), {"csv": "code\n=1\n"}).content.decode()
    assert "1 wrong" in page and "Import it" not in page
