"""Define the organisation, its people, their memberships and API tokens."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.crypto import salted_hmac

from scheduler.models import Team


class LeaverWork(models.TextChoices):
    """What happens to the work of a person whose account is closed."""

    STOP = "stop", "is stopped with its grace period"
    RESERVATION = "reservation", "ends at the end of its reservation, and at once without one"
    HAND_OVER = "hand_over", "continues until it finishes, and a lead of the team is in charge"


class Organisation(models.Model):
    """The organisation that owns the pools. The table has one row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    name = models.CharField(max_length=80)
    time_zone = models.CharField(max_length=60, default="UTC")
    tax_text = models.CharField(
        max_length=300, default="", blank=True, help_text="tax note on each statement of a cost centre"
    )
    payment_days = models.PositiveSmallIntegerField(
        default=30, help_text="days from the close of a month until its statements are due"
    )
    two_step_close = models.BooleanField(
        default=False, help_text="one person proposes to close a month, and another person closes it"
    )
    token_days = models.PositiveSmallIntegerField(
        default=365, help_text="longest life of an API token that is made in the browser, in days"
    )
    separate_approver = models.BooleanField(
        null=True,
        default=None,
        help_text="nobody decides their own request; null: where there are two operators",
    )
    local_sign_in = models.BooleanField(
        default=True, help_text="people can sign in with a password of this installation"
    )
    leaver_work = models.CharField(
        max_length=12,
        choices=LeaverWork.choices,
        default=LeaverWork.STOP,
        help_text="what happens to the work of people whose accounts are closed",
    )
    second_factor_for = models.CharField(
        max_length=24,
        default="nobody",
        choices=[
            ("nobody", "nobody"),
            ("operators_and_finance", "operators and finance"),
            ("everybody", "everybody"),
        ],
        help_text="people who must have a second factor",
    )
    step_up_minutes = models.PositiveSmallIntegerField(
        default=10, help_text="minutes for which a proof of identity allows changes that need a fresh one"
    )
    simulated_history_until = models.DateTimeField(null=True, blank=True)
    history_progress = models.JSONField(
        null=True, blank=True, help_text="progress of loading the simulated history: done, total, text"
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="there_is_one_organisation")]


class User(AbstractUser):
    """A user. The fields operator, finance and auditor are roles in the whole organisation.

    The roles in teams are the user's Memberships.
    """

    operator = models.BooleanField(default=False, help_text="manages hosts and pools, decides approvals")
    finance = models.BooleanField(default=False, help_text="sees all charges, closes months")
    auditor = models.BooleanField(default=False, help_text="sees everything, changes nothing")
    time_zone = models.CharField(
        max_length=60,
        default="",
        blank=True,
        help_text="time zone of its dates; empty: the browser's, or else the organisation's",
    )
    theme = models.CharField(
        max_length=6,
        default="system",
        choices=[("system", "as the system"), ("light", "light"), ("dark", "dark")],
    )
    leaver_work = models.CharField(
        max_length=12,
        choices=LeaverWork.choices,
        null=True,
        blank=True,
        help_text="what happens to the work while the account is closed; null: as the organisation says",
    )
    session_generation = models.PositiveIntegerField(
        default=0,
        help_text="a session, an entry code or a workspace session of an older generation is refused",
    )

    service_team = models.ForeignKey(
        Team,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="service_accounts",
        help_text="team of a service account; null: a person",
    )
    service_owner = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="service_accounts",
        help_text="person who answers for a service account",
    )

    @property
    def sign_in_state(self) -> str:
        """Return a text that changes with the password and with each end of the user's sessions.

        Sessions and secret addresses contain a hash of it. Generation 0 adds nothing, so that sessions from
        before the column existed stay valid.
        """
        return f"{self.password}\n{self.session_generation}" if self.session_generation else self.password

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        """Return the hash that Django compares with the hash in each session of the user."""
        key_salt = "django.contrib.auth.models.AbstractBaseUser.get_session_auth_hash"
        return salted_hmac(key_salt, self.sign_in_state, secret=secret, algorithm="sha256").hexdigest()

    @property
    def is_service_account(self) -> bool:
        return self.service_team_id is not None

    def may_authenticate(self) -> bool:
        """Return True if the account is active. A service account also needs an active owner."""
        if not self.is_active or not self.is_service_account:
            return bool(self.is_active)
        return self.service_owner is not None and bool(self.service_owner.is_active)


class Membership(models.Model):
    class Role(models.TextChoices):
        MEMBER = "member"
        LEAD = "lead"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=6, choices=Role.choices, default=Role.MEMBER)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "team"], name="one_membership_per_user_and_team")
        ]


class TokenScope(models.TextChoices):
    """The rights that a token may have. A token never allows more than its user may do."""

    READ = "read"
    SUBMIT = "submit"
    MANAGE = "manage"
    FINANCE = "finance"


def all_scopes() -> list[str]:
    """Return every scope. A token with all of them may do everything that its user may do."""
    return list(TokenScope.values)


class ApiToken(models.Model):
    """An API token. Its text is shown once, when it is created.

    Only the hash of the text is stored. ``parent`` is the token that created this one. A token ends, or is
    revoked, no later than its parent.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12, help_text="first characters of the token, to identify it")
    token_hash = models.CharField(unique=True, max_length=64)
    scopes = ArrayField(models.CharField(max_length=8, choices=TokenScope.choices), default=all_scopes)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.CASCADE, related_name="children"
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=~Q(scopes=[]), name="a_token_has_a_scope")]

    def is_in_force(self, now: datetime) -> bool:
        """Return True if the token is neither revoked nor expired, and its account may authenticate."""
        return self.revoked_at is None and self.expires_at > now and self.user.may_authenticate()
