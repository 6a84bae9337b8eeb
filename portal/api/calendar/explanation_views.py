"""Implement the endpoints that explain waits: reasons, comparisons, alternatives, windows, fair shares."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.views import ApiView
from portal.api.calendar import explanation_serializers as shapes
from portal.api.work.preview_serializers import AnotherWay, alternative_body
from portal.errors import Invalid
from portal.models import TokenScope
from portal.planner_budget import metered_planning
from portal.reads.work import expected_starts, forced_moves, manual_stops, wait_explanation
from portal.reads.work.workload_details import RELATED
from portal.wording import outcome_texts, queue_order_texts, reason_texts
from scheduler.models import Workload
from scheduler.state.states import WorkloadState


def _get_workload_or_404(view: ApiView, id: UUID) -> Workload:
    return get_visible_or_404(policy.visible_workloads(view.actor).select_related(*RELATED), public_id=id)


class WorkloadExplanationView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="workloads_why", responses=shapes.WhyShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Explain why a workload waits, started or is evicted, and which workloads precede it."""
        workload, now = _get_workload_or_404(self, id), self.now
        visible = policy.visible_workloads(self.actor).select_related("owner")
        blockers = list(
            visible.filter(pk__in=workload.blockers).exclude(state=WorkloadState.ENDED).order_by("pk")
        )
        open_ = Workload.objects.filter(pk__in=workload.blockers).exclude(state=WorkloadState.ENDED).count()
        stop = manual_stops.manual_stops_of([workload]).get(workload.pk)
        code, numbers = (
            outcome_texts.current_reason_code(workload),
            outcome_texts.current_reason_numbers(workload, stop, self.actor),
        )
        with metered_planning(self.actor, now):
            ahead, more = wait_explanation.workloads_ahead(workload, self.actor, now)
        records = expected_starts.start_records_of_pools([workload.pool_id], now)
        likely = records.likely(workload)
        answer = {
            "state": workload.state,
            "code": code,
            "numbers": numbers,
            "sentence": reason_texts.reason_sentence(code, numbers, self.actor),
            "reservation_problem": reason_texts.problem_of_its_reservation(workload, self.actor),
            "position": workload.position,
            "expected_start": workload.expected_start,
            "likely_from": likely[0] if likely else None,
            "likely_by": likely[1] if likely else None,
            "past_starts": records.past(workload.pool_id),
            "ahead": ahead,
            "ahead_more": more,
            "blockers": blockers,
            "hidden_blockers": open_ - len(blockers),
            "decisions": forced_moves.workload_history(workload, 20),
        }
        return self.object_response(answer, shapes.WhyShape)


class CompareTurnsView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="workloads_why_them", responses=shapes.WhyThemShape)
    def get(self, request: Request, id: UUID, other: UUID) -> Response:
        """Explain why another workload of the pool precedes this workload: the deciding rule and numbers."""
        mine, theirs = _get_workload_or_404(self, id), _get_workload_or_404(self, other)
        now = self.now
        with metered_planning(self.actor, now):
            found = wait_explanation.compare_in_queue(mine, theirs, now)
        if found is None:
            raise Invalid(
                {"other": queue_order_texts.not_comparable(mine, theirs)}, {"other": str(theirs.public_id)}
            )
        answer = {
            "rule": found.rule,
            "numbers": found.numbers,
            "sentence": queue_order_texts.queue_order_sentence(found.rule, found.numbers),
            "without": {
                "starts_now": found.without_starts,
                "code": found.without_code,
                "numbers": found.without_numbers,
                "sentence": reason_texts.reason_sentence(
                    found.without_code, found.without_numbers, self.actor
                ),
            },
        }
        return self.object_response(answer, shapes.WhyThemShape)


class FasterAlternativesView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="workloads_sooner", responses=AnotherWay(many=True))
    def get(self, request: Request, id: UUID) -> Response:
        """List changed requests with which the planner would start a waiting workload sooner, best first."""
        now = self.now
        with metered_planning(self.actor, now):
            found = wait_explanation.faster_requests(_get_workload_or_404(self, id), now)
        return Response(AnotherWay([alternative_body(other) for other in found], many=True).data)


class ReservationWindowsView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="workloads_windows", responses=shapes.AnotherTimeShape(many=True))
    def get(self, request: Request, id: UUID) -> Response:
        """List the first windows in which a reservation of a waiting workload's hardware fits."""
        now = self.now
        with metered_planning(self.actor, now):
            found = wait_explanation.alternative_windows(_get_workload_or_404(self, id), self.actor, now)
        return Response(
            shapes.AnotherTimeShape(
                [shapes.reservation_window_body(other) for other in found], many=True
            ).data
        )


class FairShareView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="pools_fairness", responses=shapes.FairnessShape(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List the teams of a pool with guaranteed, held and borrowed GPUs and past use, least use first."""
        pool = get_visible_or_404(policy.visible_pools(self.actor), slug=slug)
        now = self.now
        with metered_planning(self.actor, now):
            rows = wait_explanation.fair_share_rows(pool, (), now)
        return Response(shapes.FairnessShape(rows, many=True).data)
