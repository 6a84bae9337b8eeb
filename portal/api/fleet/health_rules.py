"""Implement the endpoints of the rules for hardware events."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base.schema import page_schema
from portal.api.base.views import ApiView, paginate_list
from portal.api.fleet import serializers as shapes
from portal.errors import ObjectNotFound
from portal.models import TokenScope
from portal.reads.fleet import health_rules as reads
from portal.services.fleet import health_rules as verbs
from telemetry.models import HealthRule


class HealthRuleListView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="health_rules_list",
        parameters=[shapes.HealthRuleQuery],
        responses=page_schema(shapes.HealthRuleShape),
    )
    def get(self, request: Request) -> Response:
        """List the rules for hardware events, with the action, the source and the operators' changes."""
        query = self.validated_query(shapes.HealthRuleQuery)
        given = {name: query[name] for name in ("find", "action", "changed") if name in query}
        return paginate_list(reads.health_rules(**given), shapes.HealthRuleShape, query)

    @extend_schema(
        operation_id="health_rules_add",
        request=shapes.NewHealthRuleWish,
        responses={201: shapes.HealthRuleShape},
    )
    def post(self, request: Request) -> Response:
        """Add a rule for a new code. Events without a rule are only recorded. For operators."""
        return self.object_response(
            verbs.add_health_rule(**self.service_context, **self.validated_body(shapes.NewHealthRuleWish)),
            shapes.HealthRuleShape,
            201,
        )


class HealthRuleDetailView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="health_rules_read", responses=shapes.HealthRuleShape)
    def get(self, request: Request, code: str) -> Response:
        """Return one rule."""
        return self.object_response(_get_rule_or_404(code), shapes.HealthRuleShape)

    @extend_schema(
        operation_id="health_rules_set", request=shapes.HealthRuleWish, responses=shapes.HealthRuleShape
    )
    def put(self, request: Request, code: str) -> Response:
        """Change a rule; absent fields keep their values. For operators."""
        rule = _get_rule_or_404(code)
        changed = verbs.set_health_rule(
            **self.service_context, code=rule.code, **self.validated_body(shapes.HealthRuleWish)
        )
        return self.object_response(changed, shapes.HealthRuleShape)


class ResetHealthRuleView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="health_rules_reset", request=shapes.ReasonWish, responses=shapes.HealthRuleShape
    )
    def post(self, request: Request, code: str) -> Response:
        """Reset a rule to its default. For operators.

        409 if the rule equals its default, or if an operator added it.
        """
        rule = _get_rule_or_404(code)
        restored = verbs.reset_health_rule(
            **self.service_context, code=rule.code, **self.validated_body(shapes.ReasonWish)
        )
        return self.object_response(restored, shapes.HealthRuleShape)


class RemoveHealthRuleView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="health_rules_remove", request=shapes.ReasonWish, responses=shapes.HealthRuleShape
    )
    def post(self, request: Request, code: str) -> Response:
        """Remove a rule that an operator added, and return the rule.

        Later events with the rule's code are only recorded. For operators.
        """
        rule = _get_rule_or_404(code)
        removed = verbs.remove_health_rule(
            **self.service_context, code=rule.code, **self.validated_body(shapes.ReasonWish)
        )
        return self.object_response(removed, shapes.HealthRuleShape)


def _get_rule_or_404(code: str) -> HealthRule:
    rule = HealthRule.objects.filter(code=code).first()
    if rule is None:
        raise ObjectNotFound("code", code, verbs.KNOWN_CODE_HELP)
    return rule
