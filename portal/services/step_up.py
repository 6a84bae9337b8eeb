"""Require a fresh proof of identity for changes that would do the most harm in a hijacked session.

The rule is here only. A service calls ``require_fresh_proof`` with its verb after it has checked the right.
"""

from __future__ import annotations

from datetime import datetime

from portal.errors import FreshProofRequired
from portal.models import Organisation, User
from portal.sign_in.proof import browser_request, last_proof

# docs/accounts.md lists these verbs. ``create_user`` needs the proof only if the account gets a role.
STEP_UP_VERBS = frozenset(
    {
        "close_month",
        "propose_close",
        "set_price",
        "set_price_factor",
        "change_currency",
        "revoke_host",
        "create_user",
        "change_user",
        "end_sessions",
        "revoke_tokens",
        "reset_password",
        "reset_second_factor",
        "change_address",
        "stop_work",
        "remove_person",
        "change_security_settings",
    }
)


def require_fresh_proof(actor: User, verb: str, now: datetime) -> None:
    """Raise FreshProofRequired if the browser session of the actor has no fresh proof of identity.

    A request with an API token is not asked: its scopes limit it, and nobody is there to answer.
    """
    if verb not in STEP_UP_VERBS:
        raise ValueError(f"verb is {verb!r}; allowed: {', '.join(sorted(STEP_UP_VERBS))}")
    request = browser_request(actor)
    if request is None:
        return
    minutes = (Organisation.objects.first() or Organisation()).step_up_minutes
    proof = last_proof(request, actor)
    if proof is None or now.timestamp() - proof > minutes * 60:
        raise FreshProofRequired(minutes)
