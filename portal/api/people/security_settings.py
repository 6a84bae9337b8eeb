"""Implement the endpoint of the settings of security."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.views import ApiView
from portal.api.people import serializers as shapes
from portal.models import Organisation, TokenScope
from portal.services.people.security_settings import change_security_settings, security_settings


class SecuritySettingsView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="security_settings_read", responses=shapes.SecuritySettingsShape)
    def get(self, request: Request) -> Response:
        """Return the rules for tokens, own requests, second factors, fresh proofs and work of leavers."""
        return self._settings(security_settings())

    @extend_schema(
        operation_id="security_settings_change",
        request=shapes.SecuritySettingsWish,
        responses=shapes.SecuritySettingsShape,
    )
    def patch(self, request: Request) -> Response:
        """Change the settings that are given. For operators."""
        given = self.validated_body(shapes.SecuritySettingsWish)
        return self._settings(change_security_settings(**self.service_context, **given))

    def _settings(self, row: Organisation) -> Response:
        return self.object_response(
            {
                "token_days": row.token_days,
                "separate_approver": row.separate_approver,
                "second_factor_for": row.second_factor_for,
                "step_up_minutes": row.step_up_minutes,
                "separate_approver_in_force": policy.operators_need_separate_approver(),
                "leaver_work": row.leaver_work,
            },
            shapes.SecuritySettingsShape,
        )
