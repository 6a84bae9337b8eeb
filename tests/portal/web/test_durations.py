"""Test durations in forms: accepted spellings, and how a stored value is shown."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.urls import reverse

from portal.web.page.duration_field import DurationInSecondsField, format_seconds, parse_seconds
from scheduler.models import Pool
from tests.portal.web.work_samples import signed_in
from tests.world import World


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90 s", 90),
        ("15 min", 900),
        ("15m", 900),
        ("2 h", 7200),
        ("2 hours", 7200),
        ("1 d 12 h", 129_600),
        ("1d12h", 129_600),
        ("1 h, 30 min", 5400),
        ("2 weeks", 1_209_600),
        ("0", 0),
        ("", None),
        ("soon", None),
        ("2 parsecs", None),
        ("-5 min", None),
        ("1.5 h", None),
        ("h", None),
        ("2 h later", None),
        ("9" * 30, None),
        ("²", None),
    ],
)
def test_common_spellings_of_a_duration_are_accepted(text: str, seconds: int | None) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "seconds", [0, 1, 59, 60, 90, 900, 3600, 5400, 86_400, 129_600, 604_800, 7_776_000, 90_061]
)
def test_a_shown_duration_is_exact_and_can_be_submitted_again(seconds: int) -> None:
    assert parse_seconds(format_seconds(seconds)) == seconds


def test_typed_values_are_kept_and_stored_values_have_units() -> None:
    field = DurationInSecondsField(label="Notice")
    assert field.prepare_value(129_600) == "1 d 12 h" and field.prepare_value("soon") == "soon"


def test_a_lower_bound_applies_without_an_upper_one() -> None:
    field = DurationInSecondsField(label="Within", least=60)
    assert field.clean("1 min") == 60
    with pytest.raises(ValidationError, match="1 min or more"):
        field.clean("59 s")


@pytest.mark.django_db
def test_the_form_of_a_pool_shows_and_accepts_units(world: World) -> None:
    client, address = signed_in(world.operator), reverse("pool", args=["shared"])
    page = client.get(address).content.decode()
    assert 'value="30 s"' in page and 'value="14 d"' in page and 'value="10 min"' in page
    fields = {
        "stray_action": "report",
        "diagnostic_tool": "auto",
        "diagnostic_seconds": "20 min",
        "diagnose_every_hours": "0",
    }
    assert client.post(address, fields).status_code == 302
    assert Pool.objects.get(slug="shared").diagnostic_seconds == 1200
    bad = client.post(address, fields | {"diagnostic_seconds": "soon"})
    assert bad.status_code == 400 and "allowed: such as 90 s, 15 min" in bad.content.decode()
