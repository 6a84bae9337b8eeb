"""Read the rules about claims, and the identities of a person."""

from __future__ import annotations

from allauth.socialaccount.models import SocialAccount
from django.db.models import QuerySet

from portal import policy
from portal.models import ClaimRule, User


def claim_rules(viewer: policy.Viewer) -> QuerySet[ClaimRule]:
    """Return the rules, if the viewer may see how people sign in; otherwise none."""
    if not policy.may(viewer, "identity.see"):
        return ClaimRule.objects.none()
    return ClaimRule.objects.select_related("team").order_by("provider", "claim", "value", "pk")


def own_identities(user: User) -> list[SocialAccount]:
    """Return the identities that are connected to an account, oldest first."""
    return list(SocialAccount.objects.filter(user=user).order_by("date_joined", "pk"))
