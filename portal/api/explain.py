"""Endpoints that explain: why one waits, why them and not me, what would start sooner, who gets how much."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import View, find
from portal.api.shapes import explain as shapes
from portal.api.shapes.work import AnotherWay, another_way
from portal.errors import Invalid
from portal.questions import asking
from portal.selectors import moves, queue, starts, stops
from portal.selectors.work import RELATED
from portal.wording import endings, reasons, turns
from scheduler.models import Workload
from scheduler.states import WorkloadState


def _workload(view: View, id: UUID) -> Workload:
    return find(policy.visible_workloads(view.actor).select_related(*RELATED), public_id=id)


class WhyWorkload(View):
    @extend_schema(operation_id="workloads_why", responses=shapes.WhyShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Why it waits, or why it started or was told to go: in words, and what is before it."""
        workload, now = _workload(self, id), self.now
        visible = policy.visible_workloads(self.actor).select_related("owner")
        blockers = list(visible.filter(pk__in=workload.blockers).exclude(state=WorkloadState.ENDED).order_by("pk"))
        open_ = Workload.objects.filter(pk__in=workload.blockers).exclude(state=WorkloadState.ENDED).count()
        stop = stops.of_workloads([workload]).get(workload.pk)
        code, numbers = endings.code_now(workload), endings.numbers_of(workload, stop, self.actor)
        with asking(self.actor, now):
            ahead, more = queue.ahead(workload, self.actor, now)
        told = starts.of_pools([workload.pool_id], now)
        likely = told.likely(workload)
        answer = {
            "state": workload.state,
            "code": code,
            "numbers": numbers,
            "sentence": reasons.reason(code, numbers, self.actor),
            "position": workload.position,
            "expected_start": workload.expected_start,
            "likely_from": likely[0] if likely else None,
            "likely_by": likely[1] if likely else None,
            "past_starts": told.past(workload.pool_id),
            "ahead": ahead,
            "ahead_more": more,
            "blockers": blockers,
            "hidden_blockers": open_ - len(blockers),
            "decisions": moves.decisions(workload, 20),
        }
        return self.one(answer, shapes.WhyShape)


class WhyThem(View):
    @extend_schema(operation_id="workloads_why_them", responses=shapes.WhyThemShape)
    def get(self, request: Request, id: UUID, other: UUID) -> Response:
        """Why another workload, which waits or runs in the same pool, goes first: the rule that decides, with its numbers."""
        mine, theirs = _workload(self, id), _workload(self, other)
        now = self.now
        with asking(self.actor, now):
            found = queue.why_them(mine, theirs, now)
        if found is None:
            raise Invalid({"other": turns.not_compared(mine, theirs)}, {"other": str(theirs.public_id)})
        answer = {
            "rule": found.rule,
            "numbers": found.numbers,
            "sentence": turns.why_first(found.rule, found.numbers),
            "without": {
                "starts_now": found.without_starts,
                "code": found.without_code,
                "numbers": found.without_numbers,
                "sentence": reasons.reason(found.without_code, found.without_numbers, self.actor),
            },
        }
        return self.one(answer, shapes.WhyThemShape)


class Sooner(View):
    @extend_schema(operation_id="workloads_sooner", responses=AnotherWay(many=True))
    def get(self, request: Request, id: UUID) -> Response:
        """Other ways to ask that would start a waiting workload sooner, each found by the planner; the best first."""
        now = self.now
        with asking(self.actor, now):
            found = queue.sooner(_workload(self, id), now)
        return Response(AnotherWay([another_way(other) for other in found], many=True).data)


class Windows(View):
    @extend_schema(operation_id="workloads_windows", responses=shapes.AnotherTimeShape(many=True))
    def get(self, request: Request, id: UUID) -> Response:
        """Another time: the first windows in which a reservation of what a waiting workload asks for fits, with minutes to ask."""
        now = self.now
        with asking(self.actor, now):
            found = queue.windows(_workload(self, id), self.actor, now)
        return Response(shapes.AnotherTimeShape([shapes.another_time(other) for other in found], many=True).data)


class Fairness(View):
    @extend_schema(operation_id="pools_fairness", responses=shapes.FairnessShape(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """Why does that team get more? What each team of a pool is guaranteed, holds, borrows and used, the least used first."""
        pool = find(policy.visible_pools(self.actor), slug=slug)
        now = self.now
        with asking(self.actor, now):
            rows = queue.fairness(pool, (), now)
        return Response(shapes.FairnessShape(rows, many=True).data)
