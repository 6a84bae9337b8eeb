"""Implement the endpoints that preview and carry out removals of hosts and pools, and moves of hosts."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.fields import slug_field
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.removal import RemovalEffectShape, RemovalWish, RemovedShape
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.services.fleet import removal
from portal.wording.removal_texts import REMOVAL_VERBS
from scheduler.models import Host, Pool


class HostMoveWish(RemovalWish):
    pool = slug_field()


class HostRemovalView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="hosts_removal", responses=RemovalEffectShape)
    def get(self, request: Request, name: str) -> Response:
        """Return the effect of removing a host, and whether the removal would be refused. For operators."""
        found = removal.preview_host_removal(actor=self.actor, host=_host(self, name), now=self.now)
        return self.object_response(found, RemovalEffectShape)


class RemoveHostView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_remove", request=RemovalWish, responses=RemovedShape)
    def post(self, request: Request, name: str) -> Response:
        """Remove a host; its history stays. 409 while work runs on it. For operators."""
        host, given = _host(self, name), self.validated_body(RemovalWish)
        removal.remove_host(**self.service_context, host=host, **given)
        said = REMOVAL_VERBS["remove_host"].done.format(name)
        return self.object_response({"name": name, "said": said}, RemovedShape)


class HostMovePreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="hosts_move_preview", request=HostMoveWish, responses=RemovalEffectShape)
    def post(self, request: Request, name: str) -> Response:
        """Return the effect of moving a host, and whether the move would be refused. For operators."""
        host, given = _host(self, name), self.validated_body(HostMoveWish)
        policy.require(self.actor, "host.change")
        pool = lookups.visible_pool(self.actor, given["pool"])
        found = removal.preview_host_move(actor=self.actor, host=host, pool=pool, now=self.now)
        return self.object_response(found, RemovalEffectShape)


class MoveHostView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_move", request=HostMoveWish, responses=RemovedShape)
    def post(self, request: Request, name: str) -> Response:
        """Move a host to another pool. 409 while work or a reservation needs the host. For operators."""
        host, given = _host(self, name), self.validated_body(HostMoveWish)
        policy.require(self.actor, "host.change")
        pool = lookups.visible_pool(self.actor, given["pool"])
        removal.move_host(**self.service_context, host=host, pool=pool, why=given["why"])
        said = REMOVAL_VERBS["move_host"].done.format(name, pool.name)
        return self.object_response({"name": name, "said": said}, RemovedShape)


class PoolRemovalView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="pools_removal", responses=RemovalEffectShape)
    def get(self, request: Request, slug: str) -> Response:
        """Return the effect of removing a pool, and whether the removal would be refused. For operators."""
        found = removal.preview_pool_removal(actor=self.actor, pool=_pool(self, slug), now=self.now)
        return self.object_response(found, RemovalEffectShape)


class RemovePoolView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="pools_remove", request=RemovalWish, responses=RemovedShape)
    def post(self, request: Request, slug: str) -> Response:
        """Remove a pool; its history stays. 409 while it has hosts, work or reservations. For operators."""
        pool, given = _pool(self, slug), self.validated_body(RemovalWish)
        removal.remove_pool(**self.service_context, pool=pool, **given)
        said = REMOVAL_VERBS["remove_pool"].done.format(pool.name)
        return self.object_response({"name": pool.name, "said": said}, RemovedShape)


def _host(view: ApiView, name: str) -> Host:
    return lookups.visible_host(view.actor, name, policy.visible_hosts(view.actor).select_related("pool"))


def _pool(view: ApiView, slug: str) -> Pool:
    return get_visible_or_404(policy.visible_pools(view.actor), slug=slug)
