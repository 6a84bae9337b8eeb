"""Compare the connected people with an LDAP directory: close accounts, and apply the rules to present groups.

The whole directory is read before anything is changed. If it cannot be read, or if too many people would lose
something, nothing is changed, and System health reports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from allauth.socialaccount.models import SocialAccount
from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import ClaimRule, DirectorySync, User
from portal.services.people import accounts
from portal.services.people.identity.providers import checked_provider
from portal.services.people.identity.rules import Claims, RightsChange, apply_rules, change_of
from portal.services.people.person_removal import write_removal
from portal.sign_in.ldap.directory import open_directory
from portal.sign_in.ldap.settings import REMOVE
from portal.sign_in.oidc.providers import LDAP, ProviderSettings, active_providers
from portal.sign_in.oidc.refusals import SignInRefused
from portal.wording.pages import identity_pages
from portal.wording.people import account_texts
from scheduler.core.rejection import OperationRejected

SYNC_INTERVAL = timedelta(hours=24)
RETRY_INTERVAL = timedelta(hours=1)  # after a sync that changed nothing
KEPT = timedelta(days=90)


@dataclass
class SyncPlan:
    """What a sync would do. ``closes`` has the user names of the accounts that it would close.

    ``kept`` has people who stay although the directory does not have them, such as the last operator.
    """

    provider: ProviderSettings
    people: int = 0
    closes: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    changes: list[RightsChange] = field(default_factory=list)
    problem: str = ""

    @property
    def joins(self) -> int:
        """Return the number of people who would get a team or a role."""
        return sum(bool(each.joins or each.gains) for each in self.changes)

    @property
    def leaves(self) -> int:
        """Return the number of people who would lose a team or a role, without closed accounts."""
        return sum(bool(each.leaves or each.loses) for each in self.changes)

    @property
    def loses_too_many(self) -> bool:
        """Return True if more people would lose something than the provider's settings allow."""
        return (len(self.closes) + self.leaves) * 100 > self.max_loss_percent * self.people

    @property
    def max_loss_percent(self) -> int:
        return self.provider.directory.max_loss_percent if self.provider.directory else 0

    @property
    def text(self) -> str:
        """Return the plan as a sentence."""
        return self.problem or self.sentence(preview=True)

    def sentence(self, *, preview: bool) -> str:
        return identity_pages.sync_sentence(
            len(self.closes), self.joins, self.leaves, self.people, preview=preview
        )


@dataclass(frozen=True)
class _Compared:
    """A connected person, and the claims in the directory; None if the person may not sign in any more."""

    account: SocialAccount
    claims: Claims | None


def preview_sync(*, actor: User, provider: str, now: datetime) -> SyncPlan:
    """Return what a sync would do. Nothing is changed. Raises Invalid, NotAllowed."""
    policy.require(actor, "identity.change")
    return _plan(_checked(provider), now)[0]


def sync_now(
    *, actor: User, provider: str, now: datetime, allow_loss: bool = False, via: str = "web"
) -> DirectorySync:
    """Sync the people of a directory. Return the result. Raises Invalid, NotAllowed.

    With ``allow_loss``, any number of people may lose something. A person has then seen the preview.
    """
    policy.require(actor, "identity.change")
    checks = InputChecks()
    allow_loss = checks.flag("allow_loss", allow_loss)
    checks.done()
    return _sync(_checked(provider), actor=actor, now=now, allow_loss=allow_loss, via=via)


def sync_due_directories(now: datetime) -> int:
    """Sync each active directory whose last sync is a day old. Return the number of syncs.

    A sync that changed nothing is repeated after an hour.
    """
    DirectorySync.objects.filter(created_at__lt=now - KEPT).delete()
    due = [each for each in active_providers(LDAP) if _is_due(each.slug, now)]
    for each in due:
        _sync(each, actor=None, now=now, allow_loss=False, via="program")
    return len(due)


def last_sync(provider: str) -> DirectorySync | None:
    """Return the result of the last sync of a provider, or None."""
    return DirectorySync.objects.filter(provider=provider).order_by("-created_at", "-pk").first()


def _is_due(slug: str, now: datetime) -> bool:
    last = last_sync(slug)
    if last is None:
        return True
    interval = SYNC_INTERVAL if last.outcome == DirectorySync.Outcome.DONE else RETRY_INTERVAL
    return last.created_at <= now - interval


def _checked(slug: str) -> ProviderSettings:
    checks = InputChecks()
    provider = checked_provider(checks, "provider", slug)
    if provider.slug and provider.kind != LDAP:
        checks.note("provider", slug, identity_pages.NO_DIRECTORY.format(name=provider.name))
    checks.done()
    return provider


def _plan(provider: ProviderSettings, now: datetime) -> tuple[SyncPlan, list[_Compared]]:
    """Read the directory, and return what a sync would do. ``problem`` says why nothing can be done."""
    plan = SyncPlan(provider)
    try:
        compared = list(_compare(provider, now))
    except SignInRefused as refusal:
        plan.problem = identity_pages.SYNC_UNREADABLE.format(problem=refusal.message)
        return plan, []
    plan.people = len(compared)
    rules = list(ClaimRule.objects.filter(provider=provider.slug).select_related("team"))
    for each in compared:
        user = each.account.user
        if each.claims is not None:
            change = change_of(user, provider.slug, each.claims, rules)
            if not change.is_empty:
                plan.changes.append(change)
        elif _is_last_operator(user):
            plan.kept.append(user.username)
        else:
            plan.closes.append(user.username)
    return plan, compared


def _compare(provider: ProviderSettings, now: datetime) -> Iterator[_Compared]:
    """Read the entry of each connected person whose account is open. Raises SignInRefused."""
    connected = SocialAccount.objects.filter(provider=provider.slug, user__is_active=True)
    with open_directory(provider) as directory:
        for account in connected.select_related("user").order_by("user__username", "pk"):
            found = directory.person_with(account.uid, now)
            yield _Compared(account, None if found is None or found.disabled else found.claims)


def _sync(
    provider: ProviderSettings, *, actor: User | None, now: datetime, allow_loss: bool, via: str
) -> DirectorySync:
    plan, compared = _plan(provider, now)
    if plan.problem:
        return _record(plan, DirectorySync.Outcome.FAILED, plan.problem, actor, now)
    if plan.loses_too_many and not allow_loss:
        text = identity_pages.SYNC_TOO_MANY.format(
            lost=len(plan.closes) + plan.leaves, people=plan.people, percent=plan.max_loss_percent
        )
        return _record(plan, DirectorySync.Outcome.REFUSED, text, actor, now)
    done = SyncPlan(provider, plan.people)
    changed = {each.username for each in plan.changes}
    for each in compared:
        if each.claims != each.account.extra_data or each.account.user.username in changed:
            _apply(each, provider, done, actor, now, via)
    return _record(done, DirectorySync.Outcome.DONE, done.sentence(preview=False), actor, now)


def _apply(
    each: _Compared, provider: ProviderSettings, done: SyncPlan, actor: User | None, now: datetime, via: str
) -> None:
    """Apply the result of one comparison, and add it to ``done``."""
    user = each.account.user
    user.refresh_from_db()  # reading a large directory takes a while
    if not user.is_active:
        return
    if each.claims is not None:
        with transaction.atomic():
            SocialAccount.objects.filter(pk=each.account.pk).update(extra_data=each.claims)
            change = apply_rules(user=user, provider=provider.slug, claims=each.claims, now=now)
        if not change.is_empty:
            done.changes.append(change)
        return
    given = {"actor": actor, "user": user, "now": now, "via": via}
    why = account_texts.NOT_IN_DIRECTORY.format(name=provider.name)
    try:
        if provider.directory and provider.directory.when_gone == REMOVE:
            write_removal(**given, why=why)
        else:
            accounts.write_user_change(**given, active=False, why=why)
    except OperationRejected:  # the last operator stays
        done.kept.append(user.username)
        return
    done.closes.append(user.username)


def _is_last_operator(user: User) -> bool:
    try:
        accounts.reject_if_last_operator(user, stays=False)
    except OperationRejected:
        return True
    return False


def _record(plan: SyncPlan, outcome: str, text: str, actor: User | None, now: datetime) -> DirectorySync:
    return DirectorySync.objects.create(
        provider=plan.provider.slug,
        outcome=outcome,
        people=plan.people,
        closed=len(plan.closes),
        joined=plan.joins,
        left=plan.leaves,
        text=text,
        actor=actor,
        created_at=now,
    )
