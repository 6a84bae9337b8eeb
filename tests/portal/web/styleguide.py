"""Render the style guide: every component with sample values. It reads nothing from the database."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from django import forms
from django.contrib.staticfiles import finders
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal.web.components.quantities import gpus, grouped, money, percent, short_duration
from portal.web.components.state_display import STATE_DISPLAY

MODELS = [("H100-80GB", "H100 80GB, 6 free, €2.40/h"), ("A100-80GB", "A100 80GB, 24 free, €1.45/h")]
TEAMS = [
    {"name": name, "tag": tag, "colour": colour}
    for colour, (tag, name) in enumerate(
        [
            ("PF", "Protein folding"),
            ("CL", "Climate"),
            ("SP", "Speech"),
            ("RL", "Robot learning"),
            ("MI", "Medical imaging"),
            ("MA", "Materials"),
            ("SK", "Sky survey"),
            ("TR", "Translation"),
        ],
        start=1,
    )
]


class SampleForm(forms.Form):
    name = forms.SlugField(help_text="Lower case, digits, hyphen.")
    start = forms.TimeField(error_messages={"invalid": "Pool full then. First free: 22:30."})
    model = forms.ChoiceField(choices=MODELS)
    one_host = forms.BooleanField(label="All on one host", required=False, initial=True)
    model_choice = forms.ChoiceField(label="GPUs", choices=MODELS, widget=forms.RadioSelect)
    priority = forms.ChoiceField(
        choices=[("low", "Low"), ("normal", "Normal"), ("high", "High")], widget=forms.RadioSelect
    )
    labels = forms.MultipleChoiceField(
        choices=[("nvlink", "NVLink"), ("local-disk", "Local disk")],
        widget=forms.CheckboxSelectMultiple,
        required=False,
    )
    why = forms.CharField(widget=forms.Textarea, required=False, help_text="The approver reads this.")


class SampleFilters(forms.Form):
    find = forms.CharField(required=False)
    team = forms.ChoiceField(
        choices=[("", "All teams"), *((team["tag"], team["name"]) for team in TEAMS)], required=False
    )


def styleguide(request: HttpRequest) -> HttpResponse:
    """Render the style guide."""
    return render(request, "styleguide.html", {"guide": _sample(timezone.now())})


def _sample(now: datetime) -> dict[str, Any]:
    form = SampleForm(
        {
            "name": "vessel-seg",
            "start": "six",
            "model": "A100-80GB",
            "model_choice": "H100-80GB",
            "one_host": "on",
            "priority": "normal",
            "labels": ["nvlink"],
        }
    )
    form.is_valid()
    return {
        "now": now,
        "then": now - timedelta(seconds=4),
        "long_ago": now - timedelta(minutes=2),
        "soon": now + timedelta(hours=20),
        "later": now + timedelta(hours=28),
        "form": form,
        "filters": SampleFilters(),
        "page": Paginator(range(240), 25).page(2),
        "teams": TEAMS,
        "shares": [None, 0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95],
        "icons": _icon_names(),
        "workload_states": ["queued", "placed", "starting", "running", "notice", "stopping", "ended"],
        "other_states": [name for name in STATE_DISPLAY if name not in {"idle", "waits_to_resume", "failed"}][
            7:
        ],
        "zooms": [
            {"label": "Day", "url": "#"},
            {"label": "Week", "url": "#", "current": True},
            {"label": "Month", "url": "#"},
        ],
        "tabs": [
            {"label": "Log", "url": "#", "current": True},
            {"label": "Attempts", "url": "#", "count": 2},
            {"label": "Cost", "url": "#"},
        ],
        "log": (
            "13:44:05 h3 pulling train:2.5 (4.2 GB)\n13:44:47 h3 image ready\n13:44:48 h3 step 1 of 40,000"
        ),
        **_figures_in_words(),
        **_cards(),
        **_tables_and_charts(now),
    }


def _icon_names() -> list[str]:
    path = finders.find("icons.svg")
    if not isinstance(path, str):
        return []
    names: list[str] = re.findall(r'<symbol id="([a-z-]+)"', Path(path).read_text(encoding="utf-8"))
    return [name for name in names if not name.startswith("state-")]


def _figures_in_words() -> dict[str, Any]:
    return {
        "two_readings": [
            {"label": "Position", "value": "3", "small": "of 14"},
            {"label": "Expected start", "value": "14:20–14:50"},
        ],
        "readings": [
            {"label": "Productive", "value": percent(0.533, 1), "small": "+3.1 points"},
            {"label": "Held or reserved", "value": percent(0.821, 1), "small": "of capacity"},
            {"label": "Held but not used", "value": f"{grouped(54734)} h"},
            {"label": "Median wait", "value": short_duration(360)},
            {"label": "Coverage", "value": percent(None)},
        ],
        "facts": [
            {"label": "Hardware", "value": f"{gpus(8, 'A100-80GB')}, NVLink"},
            {"label": "Agent", "value": "0.9.2, last sync 3 s ago"},
            {"label": "Runs", "value": "vessel-seg", "url": "#"},
        ],
        "charge_scope": {
            "sentence": "As finance you see the charges of every team.",
            "others": [
                "The lead of a team sees all charges of the team.",
                "Everybody sees their own charges.",
            ],
        },
        "forecast": {"expected": 6240, "low": 5900, "high": 6600},
        "quotas": [
            {"label": "H100 80GB", "text": "4 of 8", "scale": 12, "used": 4, "mark": 8},
            {
                "label": "A100 80GB",
                "text": "22 of 16, 6 borrowed",
                "scale": 32,
                "used": 16,
                "borrowed": 6,
                "mark": 16,
            },
            {
                "label": "Budget",
                "text": "forecast over by €12,900",
                "scale": 100,
                "used": 50,
                "forecast": 28,
                "over": 14,
                "mark": 78,
                "bad": True,
            },
        ],
        "words": [
            {
                "label": "duration",
                "value": ", ".join(short_duration(seconds) for seconds in (40, 1560, 11640, 187200, None)),
            },
            {
                "label": "money",
                "value": ", ".join(
                    (money(Decimal("1204.8"), "EUR"), money(Decimal("-0.805"), "USD"), money(12, "CHF"))
                ),
            },
            {"label": "gpus", "value": ", ".join((gpus(2, "H100-80GB"), gpus(1), gpus(None)))},
            {"label": "Sum", "value": money(Decimal("1214.23"), "EUR"), "sum": True},
        ],
    }


def _cards() -> dict[str, Any]:
    busy = [0.55 + 0.3 * math.sin(place / 5) * math.cos(place / 11) for place in range(60)]
    return {
        "card_running": {
            "state": "running",
            "title": "vessel-seg",
            "url": "#",
            "what": "Notebook · 2 × A100 80GB · h19, GPU 4–5",
            "simulated": True,
            "actions": [
                {"label": "Open", "url": "#", "kind": "primary", "icon": "open"},
                {"label": "Extend", "url": "#"},
                {
                    "label": "Stop",
                    "url": "/stop",
                    "post": True,
                    "kind": "quiet danger",
                    "confirm": "The memory of its kernel is lost. Its files stay.",
                },
            ],
            "spark": {
                "values": busy,
                "label": "Utilisation over the last 2 hours, now 71 percent",
                "value": "71 %",
                "small": "SM 58 %",
            },
            "readings": [
                {"label": "Time left", "value": "3 h 14 min", "small": "to 17:00"},
                {"label": "Cost", "value": "€9.43", "small": "€2.90/h"},
            ],
        },
        "card_idle": {
            "state": "idle",
            "state_detail": "41 min",
            "title": "atlas-register",
            "url": "#",
            "what": "Notebook · 1 × L40S 48GB · h55, GPU 2",
            "actions": [
                {"label": "Open", "url": "#", "icon": "open"},
                {"label": "Stop", "url": "/stop", "post": True, "kind": "quiet danger"},
            ],
            "spark": {
                "values": busy[:34] + [None] * 6 + [0.01] * 20,
                "label": "Utilisation over the last 2 hours, idle since 13:05, unknown for 12 minutes before",
                "value": "1 %",
                "small": "since 13:05",
            },
            "readings": [
                {"label": "Time left", "value": "19 min", "small": "idle limit"},
                {"label": "Cost", "value": "€3.60", "small": "€0.80/h"},
            ],
            "say": {
                "warn": True,
                "text": "No GPU work and no edit since 13:05. It stops at 14:05; your files stay.",
                "actions": [{"label": "Keep it 2 h", "url": "/keep", "post": True, "small": True}],
            },
        },
        "card_starting": {
            "state": "starting",
            "title": "nnunet-fold-3",
            "url": "#",
            "what": "Job · 2 × H100 80GB · €4.80/h from its start",
            "actions": [{"label": "Cancel", "url": "/cancel", "post": True}],
            "steps": [
                {"name": "Queued", "detail": "13:38:10", "state": "done"},
                {"name": "Placed", "detail": "h3, GPU 2–3", "state": "done"},
                {"name": "Starting", "detail": "40 s left", "state": "now"},
                {"name": "Ready", "detail": "about 13:48", "state": "todo"},
            ],
        },
        "card_queued": {
            "state": "queued",
            "title": "mri-foundation",
            "url": "#",
            "what": "Job · 8 × H100 80GB on one host · 24 h · €19.20/h",
            "actions": [
                {"label": "Change request", "url": "#"},
                {"label": "Cancel", "url": "/cancel", "post": True, "kind": "quiet danger"},
            ],
            "position": 3,
            "of": 14,
            "expected": "14:20–14:50",
            "why_url": "#",
            "why": "Needs 8 free H100 on one host. h7 is free next: fold-md ends by 14:31 at the latest.",
            "say": {
                "text": "Would start sooner:",
                "actions": [{"label": "4 × H100 now", "url": "#", "small": True}],
            },
        },
    }


def _tables_and_charts(now: datetime) -> dict[str, Any]:
    hours = [(now - timedelta(hours=back)).strftime("%Y-%m-%dT%H:00") for back in range(48, 0, -1)]
    use = [
        [round(20 + 8 * team + 9 * math.sin(place / (3 + team)), 1) for place in range(48)]
        for team in range(3)
    ]
    columns = [{"label": "Hour"}, *({"label": TEAMS[team]["name"], "numeric": True} for team in range(3))]
    return {
        "table": {
            "caption": "Workloads of this month",
            "columns": [
                {"label": "Workload", "sort": "name"},
                {"label": "Team"},
                {"label": "GPUs", "numeric": True, "sort": "gpus"},
                {"label": "Cost, €", "numeric": True, "sort": "cost"},
            ],
            "rows": [
                [{"text": "fold-md", "url": "#"}, "Protein folding", 8, "1,204.80"],
                [{"text": "vessel-seg", "url": "#"}, "Medical imaging", 2, "9.43"],
                [{"text": "run 1 of 2", "indent": 1}, "Medical imaging", 2, None],
            ],
            "total": ["Total", "", 10, "1,214.23"],
        },
        "chart_table": {
            "caption": "GPUs held per hour and team",
            "columns": columns,
            "rows": [[hour, *(line[place] for line in use)] for place, hour in enumerate(hours)],
        },
        "figure": {
            "data": [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "stackgroup": "one",
                    "x": hours,
                    "y": use[team],
                    "name": TEAMS[team]["name"],
                    "meta": {"colour": f"team-{TEAMS[team]['colour']}"},
                }
                for team in range(3)
            ],
            "layout": {"yaxis": {"title": {"text": "GPUs"}}},
        },
        "heat": {
            "data": [
                {
                    "type": "heatmap",
                    "x": list(range(24)),
                    "y": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"],
                    "zmin": 0,
                    "zmax": 1,
                    "z": [
                        [round(0.5 + 0.4 * math.sin(hour / 4 + day), 2) for hour in range(24)]
                        for day in range(7)
                    ],
                }
            ],
            "layout": {"yaxis": {"autorange": "reversed"}, "hovermode": "closest"},
        },
    }
