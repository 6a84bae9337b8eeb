"""Read one account for the operators who protect it."""

from __future__ import annotations

from portal import policy
from portal.models import AuditEvent, User

SIGN_IN_VERBS = (
    "sign_in",
    "sign_out",
    "fail_sign_in",
    "delay_sign_in",
    "refuse_identity",
    "create_user_from_claims",
    "apply_claim_rules",
    "connect_identity",
    "disconnect_identity",
    "create_break_glass_link",
    "use_break_glass_link",
    "request_password_reset",
    "set_password",
    "set_password_by_link",
)
RECENT_SIGN_INS = 12


def recent_sign_ins(viewer: policy.Viewer, user: User) -> list[AuditEvent]:
    """Return the latest events of signing in to an account that the viewer may see, newest first."""
    rows = policy.visible_audit(viewer).filter(target=f"user:{user.pk}", verb__in=SIGN_IN_VERBS)
    return list(rows.order_by("-at", "-pk")[:RECENT_SIGN_INS])
