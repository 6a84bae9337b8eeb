"""Implement the endpoints of pools and hosts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.db.models import F, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import EmptyBody
from portal.api.base.views import ApiView
from portal.api.fleet import serializers as shapes
from portal.models import TokenScope
from portal.reads.fleet import host_details as reads
from portal.reads.fleet.free_capacity import free_slots_by_model
from portal.services.fleet import host_effects, hosts
from portal.services.fleet.pool_work import change_pool_work
from portal.services.fleet.pools import demand_isolation
from portal.wording import host_texts
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Host, Pool
from scheduler.reads import capacity
from scheduler.services import JOIN_TOKEN_TTL


def _pool_with_counts(pool: Pool, view: ApiView) -> Pool:
    """Return the pool with an attribute ``model_counts``: total, held and free GPUs of each model."""
    parts = free_slots_by_model(pool, view.now)
    pool.model_counts = [  # type: ignore[attr-defined]
        {
            "model": each.model,
            "gpus": round(each.total / SLOTS_PER_GPU),
            "in_service_gpus": (each.total - each.closed) / SLOTS_PER_GPU,
            "held_gpus": each.held / SLOTS_PER_GPU,
            "free_gpus": each.free / SLOTS_PER_GPU,
            "free_in_parts_gpus": min(parts.get(each.model, 0), each.free) / SLOTS_PER_GPU,
        }
        for each in capacity.pool_occupancy(pool, view.now)
    ]
    return pool


def _visible_hosts(view: ApiView) -> QuerySet[Host]:
    return policy.visible_hosts(view.actor).select_related("pool").prefetch_related("gpus")


class PoolListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="pools_list", responses=shapes.PoolShape(many=True))
    def get(self, request: Request) -> Response:
        """List the pools that you may use or see, with their free units."""
        rows = policy.visible_pools(self.actor).select_related("team").order_by("slug")
        return Response(shapes.PoolShape([_pool_with_counts(pool, self) for pool in rows], many=True).data)


class PoolDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="pools_read", responses=shapes.PoolShape)
    def get(self, request: Request, slug: str) -> Response:
        """Return one pool with its free units. A removed pool has ``removed_at``."""
        rows = policy.visible_pools_with_removed(self.actor).select_related("team")
        pool = get_visible_or_404(rows, slug=slug)
        return self.object_response(_pool_with_counts(pool, self), shapes.PoolShape)


class PoolIsolationView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="pools_demand_isolation", request=shapes.IsolationWish, responses=shapes.PoolShape
    )
    def put(self, request: Request, slug: str) -> Response:
        """Set the isolation that a pool requires: none, sandbox, team_users or limits. For operators."""
        pool = get_visible_or_404(policy.visible_pools(self.actor).select_related("team"), slug=slug)
        changed = demand_isolation(
            **self.service_context, pool=pool, **self.validated_body(shapes.IsolationWish)
        )
        return self.object_response(_pool_with_counts(changed, self), shapes.PoolShape)


class PoolWorkView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="pools_work", request=shapes.PoolWorkWish, responses=shapes.PoolShape)
    def put(self, request: Request, slug: str) -> Response:
        """Set as whom new work runs, if it may use perf_event_open, and the limit of homes. For operators."""
        pool = get_visible_or_404(policy.visible_pools(self.actor).select_related("team"), slug=slug)
        body = self.validated_body(shapes.PoolWorkWish)
        changed = change_pool_work(**self.service_context, pool=pool, **body)
        return self.object_response(_pool_with_counts(changed, self), shapes.PoolShape)


class HostListView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="hosts_list", parameters=[shapes.HostQuery], responses=page_schema(shapes.HostShape)
    )
    def get(self, request: Request) -> Response:
        """List the hosts of the pools that you may see."""
        query = self.validated_query(shapes.HostQuery)
        rows = _visible_hosts(self)
        if query.get("pool"):
            rows = rows.filter(pool__slug=query["pool"])
        return self.list_response(rows.order_by("name"), shapes.HostShape, query)

    @extend_schema(operation_id="hosts_add", request=shapes.HostWish, responses={201: shapes.JoinShape})
    def post(self, request: Request) -> Response:
        """Add a host; the response has its agent's join token, and the command to paste. For operators."""
        given = self.validated_body(shapes.HostWish)
        given["pool"] = lookups.visible_pool(self.actor, given["pool"])
        by = self.service_context
        host, token = hosts.add_host(**by, **given)
        return _join_token_response(self, host, token, by["now"])


class HostDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="hosts_read", responses=shapes.HostDetail)
    def get(self, request: Request, name: str) -> Response:
        """Return one host, the report of its agent, and the last rejected agent.

        A removed host has ``removed_at``.
        """
        rows = policy.visible_hosts_with_removed(self.actor).select_related("pool").prefetch_related("gpus")
        newest_first = rows.order_by(F("removed_at").desc(nulls_first=True), "-pk")
        return self.object_response(lookups.visible_host(self.actor, name, newest_first), shapes.HostDetail)


class HostChangePreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="hosts_preview", request=shapes.HostVerbTry, responses=shapes.HostEffectShape)
    def post(self, request: Request, name: str) -> Response:
        """Return the effect of an action, such as a drain, on workloads and reservations. For operators.

        The preview is refused with the same errors as the action.
        """
        given = self.validated_body(shapes.HostVerbTry)
        found = host_effects.preview_host_verb(
            actor=self.actor, host=_visible_host(self, name), now=self.now, **given
        )
        return self.object_response(found, shapes.HostEffectShape)


class CordonHostView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_cordon", request=shapes.ReasonWish, responses=shapes.ChangedHostShape)
    def post(self, request: Request, name: str) -> Response:
        """Stop starting workloads on a host; its running workloads continue. For operators."""
        return _change_response(self, name, "cordon", hosts.cordon_host)


class DrainHostView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_drain", request=shapes.ReasonWish, responses=shapes.ChangedHostShape)
    def post(self, request: Request, name: str) -> Response:
        """Stop starting workloads on a host, and evict preemptible workloads with notice. For operators."""
        return _change_response(self, name, "drain", hosts.drain_host)


class ReturnHostView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_return", request=shapes.ReasonWish, responses=shapes.ChangedHostShape)
    def post(self, request: Request, name: str) -> Response:
        """Return a host to service. For operators."""
        return _change_response(self, name, "return", hosts.return_host)


class AttestHostOffView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="hosts_attest_off", request=shapes.ReasonWish, responses=shapes.ChangedHostShape
    )
    def post(self, request: Request, name: str) -> Response:
        """Attest that a host is powered off. 409 while its agent is connected. For operators."""
        return _change_response(self, name, "off", hosts.attest_off)


class RevokeHostView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_revoke", request=shapes.ReasonWish, responses=shapes.ChangedHostShape)
    def post(self, request: Request, name: str) -> Response:
        """Revoke the credential of a host's agent. The agent must join again. For operators."""
        return _change_response(self, name, "revoke", hosts.revoke_host)


class HostJoinTokenView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_join_token", request=EmptyBody, responses={201: shapes.JoinShape})
    def post(self, request: Request, name: str) -> Response:
        """Create a new join token, with the command to paste. It replaces unused tokens. For operators."""
        host, by = _visible_host(self, name), self.service_context
        self.validated_body(EmptyBody)
        return _join_token_response(self, host, hosts.new_join_token(**by, host=host), by["now"])


class HostMaintenanceView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="hosts_maintenance",
        request=shapes.MaintenanceWish,
        responses={201: shapes.MadeMaintenanceShape},
    )
    def post(self, request: Request, name: str) -> Response:
        """Announce a maintenance window; the response has its effect. For operators."""
        host, by, given = (
            _visible_host(self, name),
            self.service_context,
            self.validated_body(shapes.MaintenanceWish),
        )
        made = hosts.set_maintenance(**by, host=host, **given)
        found = host_effects.host_verb_effect(host, "maintenance", by["now"], made.start, made.end)
        body = {
            "window": made,
            "work": found.work,
            "reservations": found.reservations,
            "moved": found.moved,
            "unkept": found.unkept,
        }
        return self.object_response(body, shapes.MadeMaintenanceShape, 201)


def _visible_host(view: ApiView, name: str) -> Host:
    return lookups.visible_host(view.actor, name, _visible_hosts(view))


def _change_response(view: ApiView, name: str, verb: str, deed: Callable[..., Host]) -> Response:
    """Change the host with ``deed``, one of the services for hosts.

    Return the changed host, a sentence about the change, and the workloads that still run on the host.
    """
    by = view.service_context
    host = deed(**by, host=_visible_host(view, name), **view.validated_body(shapes.ReasonWish))
    host.said = host_texts.HOST_VERBS[verb].done.format(host.name)  # type: ignore[attr-defined]
    host.still_there = host_effects.affected_workloads(host, verb, by["now"])  # type: ignore[attr-defined]
    return view.object_response(host, shapes.ChangedHostShape)


def _join_token_response(view: ApiView, host: Host, token: str, now: datetime) -> Response:
    commands = hosts.join_commands(host, token)
    body = {
        "host": host.name,
        "token": token,
        "good_until": now + JOIN_TOKEN_TTL,
        "command": commands.installed,
        "checkout_command": commands.checkout,
        "simulated_as": reads.simulation_options(host),
    }
    return view.object_response(body, shapes.JoinShape, 201)
