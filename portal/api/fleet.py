"""Endpoints of pools, hosts and what is done about hardware events."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api import naming
from portal.api.base import Empty, PageQuery, View, find
from portal.api.paging import page_of
from portal.api.shapes import fleet as shapes
from portal.api.shapes.work import BlockerShape
from portal.selectors.free import free_parts
from portal.services import health, hosts
from portal.services.pools import demand_isolation
from scheduler import selectors
from scheduler.core.model import SLOTS_PER_GPU
from scheduler.models import Host, Pool
from telemetry.models import HealthRule


def _counted(pool: Pool, view: View) -> Pool:
    """The pool with what its GPUs do at this moment, by model."""
    parts = free_parts(pool, view.now)
    pool.model_counts = [  # type: ignore[attr-defined]
        {
            "model": each.model,
            "gpus": round(each.total / SLOTS_PER_GPU),
            "in_service_gpus": (each.total - each.closed) / SLOTS_PER_GPU,
            "held_gpus": each.held / SLOTS_PER_GPU,
            "free_gpus": each.free / SLOTS_PER_GPU,
            "free_in_parts_gpus": min(parts.get(each.model, 0), each.free) / SLOTS_PER_GPU,
        }
        for each in selectors.occupancy(pool, view.now)
    ]
    return pool


def _hosts(view: View) -> QuerySet[Host]:
    return policy.visible_hosts(view.actor).select_related("pool").prefetch_related("gpus")


class Pools(View):
    @extend_schema(operation_id="pools_list", responses=shapes.PoolShape(many=True))
    def get(self, request: Request) -> Response:
        """Pools that you may use or see, with what is free now."""
        rows = policy.visible_pools(self.actor).select_related("team").order_by("slug")
        return Response(shapes.PoolShape([_counted(pool, self) for pool in rows], many=True).data)


class OnePool(View):
    @extend_schema(operation_id="pools_read", responses=shapes.PoolShape)
    def get(self, request: Request, slug: str) -> Response:
        """One pool, with what is free now."""
        pool = find(policy.visible_pools(self.actor).select_related("team"), slug=slug)
        return self.one(_counted(pool, self), shapes.PoolShape)


class PoolIsolation(View):
    @extend_schema(operation_id="pools_demand_isolation", request=shapes.IsolationWish, responses=shapes.PoolShape)
    def put(self, request: Request, slug: str) -> Response:
        """How well its hosts have to keep workloads apart: none, sandbox, team_users or limits. For operators."""
        pool = find(policy.visible_pools(self.actor).select_related("team"), slug=slug)
        changed = demand_isolation(**self.by, pool=pool, **self.given(shapes.IsolationWish))
        return self.one(_counted(changed, self), shapes.PoolShape)


class Hosts(View):
    @extend_schema(operation_id="hosts_list", parameters=[shapes.HostQuery], responses=page_of(shapes.HostShape))
    def get(self, request: Request) -> Response:
        """Hosts of the pools that you may see."""
        query = self.query(shapes.HostQuery)
        rows = _hosts(self)
        if query.get("pool"):
            rows = rows.filter(pool__slug=query["pool"])
        return self.page(rows.order_by("name"), shapes.HostShape, query)

    @extend_schema(operation_id="hosts_add", request=shapes.HostWish, responses={201: shapes.JoinShape})
    def post(self, request: Request) -> Response:
        """Make a host known; the answer has the token with which its agent joins."""
        given = self.given(shapes.HostWish)
        given["pool"] = naming.pool_of(self.actor, given["pool"])
        host, token = hosts.add_host(**self.by, **given)
        return self.one({"host": host.name, "token": token}, shapes.JoinShape, 201)


class OneHost(View):
    @extend_schema(operation_id="hosts_read", responses=shapes.HostShape)
    def get(self, request: Request, name: str) -> Response:
        """One host."""
        return self.one(find(_hosts(self), name=name), shapes.HostShape)


class DrainEffectShape(serializers.Serializer[Any]):
    gpus = serializers.IntegerField()
    preemptible = serializers.IntegerField(help_text="workloads that would be asked to go")
    others = serializers.IntegerField(help_text="workloads that would run to their end")
    last_end = serializers.DateTimeField(allow_null=True, help_text="when the last of them is over by its limit")
    workloads = BlockerShape(many=True)


class DrainEffect(View):
    @extend_schema(operation_id="hosts_drain_effect", responses=DrainEffectShape)
    def get(self, request: Request, name: str) -> Response:
        """What cordoning or draining it touches. For operators."""
        policy.require(self.actor, "host.change")
        return self.one(hosts.effect_of_drain(find(_hosts(self), name=name), self.now), DrainEffectShape)


class CordonHost(View):
    @extend_schema(operation_id="hosts_cordon", request=shapes.ReasonWish, responses=shapes.HostShape)
    def post(self, request: Request, name: str) -> Response:
        """Nothing new starts there; what runs goes on."""
        host = find(_hosts(self), name=name)
        return self.one(hosts.cordon_host(**self.by, host=host, **self.given(shapes.ReasonWish)), shapes.HostShape)


class DrainHost(View):
    @extend_schema(operation_id="hosts_drain", request=shapes.ReasonWish, responses=shapes.HostShape)
    def post(self, request: Request, name: str) -> Response:
        """Nothing new starts there, and what runs is asked to go."""
        host = find(_hosts(self), name=name)
        return self.one(hosts.drain_host(**self.by, host=host, **self.given(shapes.ReasonWish)), shapes.HostShape)


class ReturnHost(View):
    @extend_schema(operation_id="hosts_return", request=shapes.ReasonWish, responses=shapes.HostShape)
    def post(self, request: Request, name: str) -> Response:
        """Back in service."""
        host = find(_hosts(self), name=name)
        return self.one(hosts.return_host(**self.by, host=host, **self.given(shapes.ReasonWish)), shapes.HostShape)


class AttestHostOff(View):
    @extend_schema(operation_id="hosts_attest_off", request=shapes.ReasonWish, responses=shapes.HostShape)
    def post(self, request: Request, name: str) -> Response:
        """You have seen it powered off: its work starts elsewhere at once. 409 while its agent speaks. For operators."""
        host = find(_hosts(self), name=name)
        return self.one(hosts.attest_off(**self.by, host=host, **self.given(shapes.ReasonWish)), shapes.HostShape)


class RevokeHost(View):
    @extend_schema(operation_id="hosts_revoke", request=shapes.ReasonWish, responses=shapes.HostShape)
    def post(self, request: Request, name: str) -> Response:
        """Take its agent's credential away: it must join again."""
        host = find(_hosts(self), name=name)
        return self.one(hosts.revoke_host(**self.by, host=host, **self.given(shapes.ReasonWish)), shapes.HostShape)


class HostToken(View):
    @extend_schema(operation_id="hosts_join_token", request=Empty, responses={201: shapes.JoinShape})
    def post(self, request: Request, name: str) -> Response:
        """Another join token; those not used yet stop working."""
        host = find(_hosts(self), name=name)
        self.given(Empty)
        return self.one({"host": host.name, "token": hosts.new_join_token(**self.by, host=host)}, shapes.JoinShape, 201)


class HostMaintenance(View):
    @extend_schema(
        operation_id="hosts_maintenance", request=shapes.MaintenanceWish, responses={201: shapes.MaintenanceShape}
    )
    def post(self, request: Request, name: str) -> Response:
        """Announce a window in which it is away."""
        host = find(_hosts(self), name=name)
        given = self.given(shapes.MaintenanceWish)
        return self.one(hosts.set_maintenance(**self.by, host=host, **given), shapes.MaintenanceShape, 201)


class HealthRules(View):
    @extend_schema(operation_id="health_rules_list", parameters=[PageQuery], responses=page_of(shapes.HealthRuleShape))
    def get(self, request: Request) -> Response:
        """What is done about which hardware event."""
        return self.page(HealthRule.objects.order_by("code"), shapes.HealthRuleShape, self.query(PageQuery))


class OneHealthRule(View):
    @extend_schema(operation_id="health_rules_set", request=shapes.HealthRuleWish, responses=shapes.HealthRuleShape)
    def put(self, request: Request, code: str) -> Response:
        """Change what is done."""
        rule = find(HealthRule.objects.all(), code=code)
        return self.one(
            health.set_health_rule(**self.by, code=rule.code, **self.given(shapes.HealthRuleWish)),
            shapes.HealthRuleShape,
        )
