"""Render the studies of the number of GPUs: a form, their list, and one study with its table and charts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.reads.fleet import capacity_studies as reads
from portal.reads.fleet.capacity_studies import ModelStudy, StudyDetails, StudySize
from portal.reads.fleet.utilisation import visible_gpu_models
from portal.services.fleet import capacity_studies as service
from portal.web.components.chart_labels import end_labels, line_label
from portal.web.components.quantities import grouped, money, percent, short_duration
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.csv_export import csv_response
from portal.web.page.duration_field import DurationInSecondsField
from portal.web.page.live_refresh import render_live_page
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import capacity_pages as texts
from scheduler.models import Pool

TABLE_COLUMNS = [{"label": "GPUs"}, *({"label": label, "numeric": True} for label in texts.SIZE_COLUMNS)]


class CapacityStudyForm(ServiceForm):
    pool: forms.ModelChoiceField[Pool] = forms.ModelChoiceField(label="Pool", queryset=None, empty_label=None)
    model = forms.ChoiceField(label="Model", required=False)
    wait_limit_seconds = DurationInSecondsField(
        label="Wait to keep",
        initial=3_600,
        least=service.MIN_WAIT_SECONDS,
        most=service.MAX_WAIT_SECONDS,
        help_text=texts.WAIT_HELP,
    )

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["pool"].queryset = policy.visible_pools(user).order_by("name")
        models = visible_gpu_models(user)
        fields["model"].choices = [("", texts.EACH_MODEL), *((model, model) for model in models)]


@sign_in_required
def capacity(request: HttpRequest) -> HttpResponseBase:
    """List the studies. A POST of an operator requests one."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "capacity.see")
    form = CapacityStudyForm(request.POST or None, user=user)
    if request.method == "POST":
        policy.require(user, "capacity.study")
        if form.is_valid():
            done = form.carry_out(service.request_capacity_study, actor=user, now=now, **form.cleaned_data)
            if done is not None:
                messages.success(request, texts.REQUESTED.format(pool=done.pool.name))
                return redirect("capacity-study", done.public_id)
    rows = [
        {
            "study": row,
            "model": row.model or texts.EACH_MODEL,
            "wait": short_duration(row.wait_limit_seconds),
            "state": texts.STATE_LABELS[row.state],
        }
        for row in reads.capacity_studies()[: reads.LISTED]
    ]
    context = {"form": form, "rows": rows, "now": now, "may_study": policy.may(user, "capacity.study")}
    return render(request, "manage/capacity.html", context, status=400 if form.errors else 200)


@sign_in_required
def capacity_study(request: HttpRequest, public_id: UUID) -> HttpResponseBase:
    """Show one study. While it runs, the page refreshes its progress and its sizes."""
    details = _details(request, public_id)
    study = details.study
    context = {
        "study": study,
        "details": details,
        "model": study.model or texts.EACH_MODEL,
        "wait": short_duration(study.wait_limit_seconds),
        "state": texts.STATE_LABELS[study.state],
        "progress": percent(study.progress),
        "models": [_model_context(details, model) for model in details.models],
        "nothing": texts.NOTHING_REPLAYED,
    }
    return render_live_page(
        request,
        "manage/capacity_study.html",
        "manage/capacity_study_part.html",
        context,
        topics=(),
        now=timezone.now(),
        stage=study.state,
    )


@sign_in_required
def capacity_study_csv(request: HttpRequest, public_id: UUID) -> HttpResponseBase:
    """Return the sizes of a study as a CSV download."""
    details = _details(request, public_id)
    rows = [
        [
            *(model.model, size.change, size.gpus, size.requests, size.p50_seconds, size.p95_seconds),
            *(size.not_started, size.idle, size.cost_per_month, size.extra_cost_per_month),
            *(details.currency, size.keeps_limit),
        ]
        for model in details.models
        for size in model.sizes
    ]
    return csv_response("number-of-gpus.csv", texts.CSV_COLUMNS, rows)


def _details(request: HttpRequest, public_id: UUID) -> StudyDetails:
    policy.require(current_user(request), "capacity.see")
    details = reads.capacity_study(public_id)
    if details is None:
        raise Http404
    return details


def _model_context(details: StudyDetails, model: ModelStudy) -> dict[str, Any]:
    currency, limit = details.currency, details.study.wait_limit_seconds
    name = f"sizes-{model.model}"
    return {
        "name": name,
        "title": texts.CHART_TITLE.format(model=model.model),
        "hint": texts.CHART_HINT,
        "figure": _figure(model, limit, currency),
        "table": {
            "caption": texts.CHART_TITLE.format(model=model.model),
            "columns": TABLE_COLUMNS,
            "rows": [_row(size, currency) for size in model.sizes],
        },
        "finding": model.finding(limit, currency),
        "trust": model.trust,
        "trusted": model.is_trusted,
    }


def _row(size: StudySize, currency: str) -> list[Any]:
    return [
        grouped(size.gpus),
        f"{size.change:+d} %" if size.change else "as now",
        _wait(size.p50_seconds),
        _wait(size.p95_seconds),
        grouped(size.not_started),
        percent(size.idle),
        _money(size.cost_per_month, currency),
        _money(size.extra_cost_per_month, currency),
    ]


def _wait(seconds: float | None) -> str:
    return "–" if seconds is None else short_duration(seconds)


def _money(amount: Decimal | None, currency: str) -> str:
    return "–" if amount is None else money(amount, currency)


def _figure(model: ModelStudy, limit: int, currency: str) -> dict[str, Any]:
    x = [size.gpus for size in model.sizes]
    waits = [None if size.p95_seconds is None else round(size.p95_seconds / 3600, 3) for size in model.sizes]
    costs = [None if size.cost_per_month is None else float(size.cost_per_month) for size in model.sizes]
    return {
        "data": [
            _trace(texts.WAIT_TRACE, x, waits, "accent", "%{y:,.2f} h"),
            {
                **_trace(texts.COST_TRACE, x, costs, "edge", f"%{{y:,.0f}} {currency}", "dot"),
                "yaxis": "y2",
            },
            _trace(texts.LIMIT_TRACE, [x[0], x[-1]], [limit / 3600] * 2, "ink", "%{y:,.2f} h", "dash"),
        ],
        "layout": {
            "hovermode": "x unified",
            "showlegend": False,
            "annotations": [
                *end_labels(x, waits, texts.WAIT_TRACE),
                *end_labels(x, costs, texts.COST_TRACE, yref="y2"),
                line_label(x[0], limit / 3600, texts.LIMIT_TRACE, xanchor="left"),
            ],
            "xaxis": {"tickvals": x},
            "yaxis": {"title": {"text": "hours"}, "rangemode": "tozero"},
            "yaxis2": {
                "overlaying": "y",
                "side": "right",
                "rangemode": "tozero",
                "showgrid": False,
                "tickformat": ",.0f",
            },
            "margin": {"l": 56, "r": 72, "t": 16, "b": 32},
        },
    }


def _trace(
    name: str, x: list[int], y: list[float | None], colour: str, hover: str, dash: str = "solid"
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if dash != "dash" else "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"dash": dash},
        "hovertemplate": hover,
        "meta": {"colour": colour},
    }
