"""Test template filters, tags and components: formats, escaping and accessibility."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django import forms
from django.template import Context, Template, TemplateSyntaxError
from django.test import RequestFactory
from django.utils import timezone

from portal.web.components import drawings, quantities, state_display
from scheduler.state import states

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 11, 20, 13, 45, tzinfo=UTC)


def rendered(source: str, **context: Any) -> str:
    context.setdefault("request", RequestFactory().get("/", context.pop("query", {})))
    return Template("{% load gpupool %}" + source).render(Context(context))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (11640, "3 h 14 min"),
        (47 * 3600, "47 h"),
        (52 * 3600, "2 d 4 h"),
        (-90, "−1 min"),
        (timedelta(minutes=26), "26 min"),
        (None, "unknown"),
    ],
)
def test_a_duration_is_formatted_for_people(seconds: Any, words: str) -> None:
    assert quantities.short_duration(seconds) == words


@pytest.mark.parametrize(
    ("amount", "currency", "words"),
    [
        (Decimal("1204.8"), "EUR", "€1,204.80"),
        (Decimal("0.805"), "USD", "$0.805"),
        (Decimal("-3"), "CHF", "−CHF 3.00"),
        (Decimal("1E+3"), "", "1,000.00"),
        (Decimal("1205.000"), "JPY", "JPY 1,205"),
        (Decimal("0.5"), "KWD", "KWD 0.500"),
        (Decimal("12345678901234567890.123456"), "", "12,345,678,901,234,567,890.123456"),
        (None, "EUR", "unknown"),
    ],
)
def test_money_shows_its_currency_and_loses_no_decimal(
    amount: Decimal | None, currency: str, words: str
) -> None:
    assert quantities.money(amount, currency) == words


def test_an_unknown_value_is_never_shown_as_zero() -> None:
    assert {
        quantities.percent(None),
        quantities.grouped(None),
        quantities.data_size(None),
        quantities.gpus(None),
    } == {"unknown"}
    assert drawings.use_step(None) == "gpu-unknown"
    assert rendered("{% when None %} {% ago None now %}", now=NOW) == "unknown unknown"


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (999, "999 B"), (4_200_000_000, "4.2 GB"), (5e18, "5000 PB")]
)
def test_data_sizes_use_powers_of_a_thousand(size: float, words: str) -> None:
    assert quantities.data_size(size) == words


def test_gpus_are_counted_with_their_model() -> None:
    assert (quantities.gpus(2, "H100-80GB"), quantities.gpus(1), quantities.gpus(3)) == (
        "2 × H100 80GB",
        "1 GPU",
        "3 GPUs",
    )


def test_a_time_is_shown_in_the_viewers_zone_with_utc_on_hover() -> None:
    with timezone.override("Europe/Berlin"):
        shown = rendered("{% when moment now %}", moment=NOW, now=NOW)
    assert ">14:45<" in shown
    assert 'title="2026-11-20 13:45:00 UTC"' in shown


def test_a_time_on_another_day_names_the_day_in_the_viewers_zone() -> None:
    late = NOW.replace(hour=23, minute=30)
    assert ">23:30<" in rendered("{% when moment now %}", moment=late, now=NOW)
    with timezone.override("Europe/Berlin"):
        assert ">tomorrow 00:30<" in rendered("{% when moment now %}", moment=late, now=NOW)
    assert ">Mon 30 Nov 13:45<" in rendered("{% when moment now %}", moment=NOW + timedelta(days=10), now=NOW)
    assert ">20 Nov 2025 13:45<" in rendered("{% when moment now %}", moment=NOW.replace(year=2025), now=NOW)


def test_a_window_repeats_the_day_only_if_it_differs() -> None:
    start = NOW + timedelta(hours=20)
    shown = rendered("{% window start end now %}", start=start, end=start + timedelta(hours=8), now=NOW)
    assert re.sub("<[^>]+>", "", shown) == "tomorrow 09:45 to 17:45"
    shown = rendered("{% window start end now %}", start=start, end=None, now=NOW)
    assert re.sub("<[^>]+>", "", shown) == "since tomorrow 09:45"


def test_old_data_is_marked_as_stale() -> None:
    fresh = rendered("{% freshness moment now %}", moment=NOW - timedelta(seconds=4), now=NOW)
    stale = rendered("{% freshness moment now %}", moment=NOW - timedelta(minutes=2), now=NOW)
    assert 'class="live"' in fresh and "4 s ago" in fresh
    assert 'class="live stale"' in stale and "2 min ago" in stale
    assert "No data yet" in rendered("{% freshness None now %}", now=NOW)


@pytest.mark.parametrize(
    "name",
    sorted({str(state) for table in states.TRANSITIONS for state in table}),
)
def test_every_state_of_the_scheduler_has_a_label_and_a_shape(name: str) -> None:
    assert name in state_display.STATE_DISPLAY


def icon_names() -> set[str]:
    return set(re.findall(r'id="([a-z-]+)"', (ROOT / "static/icons.svg").read_text(encoding="utf-8")))


def test_every_state_uses_a_shape_that_exists() -> None:
    assert {f"state-{shape}" for _, shape, _ in state_display.STATE_DISPLAY.values()} <= icon_names()


def test_every_icon_in_a_template_exists() -> None:
    named = {
        name
        for path in (ROOT / "templates").rglob("*.html")
        for name in re.findall(r'{% icon "([^"]+)"', path.read_text(encoding="utf-8"))
    }
    assert named <= icon_names()


def test_a_curve_has_a_gap_where_values_are_unknown() -> None:
    shown = rendered("{% spark values 'busy' %}", values=[0.5, 0.6, None, None, 0.7, 0.8])
    assert shown.count("<polyline") == 2
    assert rendered("{% spark values 'busy' %}", values=[]).count("<polyline") == 0


def test_a_bar_never_exceeds_its_width() -> None:
    shown = rendered("{% bar 10 used=8 borrowed=6 mark=30 %}")
    widths = [float(width) for width in re.findall(r'width="([\d.]+)%"', shown)][1:]
    assert widths == [80.0, 20.0]
    assert 'class="tick" x="99.50%"' in shown
    assert 'class="used"' not in rendered("{% bar 0 used=None %}")


class SampleRequestForm(forms.Form):
    name = forms.SlugField(help_text="Lower case, digits, hyphen.")
    size = forms.ChoiceField(choices=[("s", "Small"), ("l", "Large")], widget=forms.RadioSelect)


def test_an_error_replaces_the_hint_and_is_linked_to_its_field() -> None:
    hinted = rendered("{% field form.name %}", form=SampleRequestForm())
    assert 'aria-describedby="id_name_helptext"' in hinted and 'id="id_name_helptext"' in hinted
    wrong = rendered("{% field form.name %}", form=SampleRequestForm({"name": "<b>"}))
    assert 'aria-invalid="true"' in wrong and 'aria-describedby="id_name_error"' in wrong
    assert "Lower case, digits" not in wrong and 'id="id_name_error"' in wrong
    assert "<b>" not in wrong


def test_a_choice_of_few_options_is_a_named_group() -> None:
    shown = rendered("{% field form.size shape='segmented' %}", form=SampleRequestForm())
    assert "<legend>Size" in shown and shown.count('type="radio"') == 2


def test_user_input_is_escaped_in_every_tag() -> None:
    bad = "<script>alert(1)</script>"
    team = SimpleNamespace(name=bad, tag=bad, colour=1)
    card = {
        "state": bad,
        "title": bad,
        "what": bad,
        "actions": [{"label": bad, "url": "/x", "post": True, "confirm": bad}],
    }
    table = {"caption": bad, "columns": [{"label": bad}], "rows": [[bad], [{"text": bad, "url": bad}]]}
    shown = rendered(
        "{% state bad %}{% team_mark team %}{% icon bad bad %}{% spark v bad %}{% bar 1 label=bad %}{%"
        " button bad %}"
        "{% panel bad hint=bad csv=bad %}{{ bad }}{% endpanel %}"
        "{% note action=bad action_url=bad %}{{ bad }}{% endnote %}"
        '{% include "components/workload_card.html" %}{% include "components/table.html" %}'
        '{% include "components/plotly.html" with name="x" title=bad figure=figure %}',
        bad=bad,
        team=team,
        card=card,
        table=table,
        v=[0.5],
        figure={"data": [{"name": bad}]},
    )
    assert "<script>alert" not in shown


def test_a_note_of_an_unknown_kind_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(TemplateSyntaxError, match="info, ok, warn, block"):
        rendered("{% note 'loud' %}x{% endnote %}")


def test_sorting_toggles_the_order_and_keeps_all_parameters_but_the_page() -> None:
    head = rendered('{% sort_header "GPUs" "gpus" %}', query={"sort": "gpus", "team": "mi", "page": "3"})
    assert 'aria-sort="ascending"' in head
    assert "sort=-gpus" in head and "team=mi" in head and "page" not in head


def test_a_post_button_asks_for_confirmation_and_sends_its_csrf_token() -> None:
    shown = rendered(
        '{% button "Stop" url="/stop" post=True confirm="Memory is lost." %}', csrf_token="token"
    )
    assert 'data-confirm="Memory is lost."' in shown
    assert 'name="csrfmiddlewaretoken" value="token"' in shown


def test_no_template_has_inline_styles_handlers_or_other_hosts() -> None:
    mails = ROOT / "templates" / "mail"  # mail programs ignore style sheets, and run no script
    for path in (ROOT / "templates").rglob("*.html"):
        if path.is_relative_to(mails):
            continue
        text = re.sub(
            r"{% comment %}.*?{% endcomment %}|{%.*?%}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        assert not re.search(r"\sstyle=|\son[a-z]+=|javascript:", text), path
        assert not re.search(r"(src|href)=\"(https?:)?//", text), path
        for tag in re.findall(r"<script[^>]*>", text):
            assert "nonce=" in tag or 'type="application/json"' in tag, path


def test_error_pages_need_no_context() -> None:
    for code in ("400", "403", "403_csrf", "404", "429", "500"):
        shown = (ROOT / f"templates/{code}.html").read_text(encoding="utf-8")
        assert 'extends "entrance.html"' in shown
        assert "Go to my work" in Template(shown).render(Context({}))
