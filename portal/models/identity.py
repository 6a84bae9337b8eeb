"""Define the providers that sign people in, and the rules that turn their claims into teams and roles."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from portal.models.accounts import User
from scheduler.models import Team


class IdentityProvider(models.Model):
    """An OpenID Connect provider or an LDAP directory of the organisation. Its secret is stored encrypted.

    ``directory`` has the settings of a directory (``portal.sign_in.ldap.settings.DirectorySettings``), whose
    secret is the password of the service account. It has no issuer, client id and scopes.
    """

    class Kind(models.TextChoices):
        OIDC = "oidc"
        LDAP = "ldap"

    kind = models.CharField(max_length=8, default=Kind.OIDC)
    slug = models.SlugField(
        max_length=40, unique=True, help_text="part of the callback address; never changes"
    )
    name = models.CharField(max_length=80, help_text="label of the button on the sign-in page")
    issuer = models.CharField(max_length=300)
    client_id = models.CharField(max_length=200)
    encrypted_secret = models.TextField()
    scopes = models.CharField(max_length=200, default="openid profile email")
    username_claim = models.CharField(max_length=80, default="preferred_username")
    uid_claim = models.CharField(
        max_length=80,
        default="",
        blank=True,
        help_text="claim with the Unix user number; empty: none is taken",
    )
    gid_claim = models.CharField(max_length=80, default="", blank=True)
    groups_claim = models.CharField(max_length=80, default="", blank=True)
    unix_name_claim = models.CharField(max_length=80, default="", blank=True)
    home_claim = models.CharField(max_length=80, default="", blank=True)
    ca_certificates = models.TextField(
        default="", blank=True, help_text="PEM certificates that are trusted in addition to the system's"
    )
    active = models.BooleanField(default=True, help_text="people can sign in with it")
    directory = models.JSONField(default=dict, blank=True)
    creates_accounts = models.BooleanField(
        default=True, help_text="a person who signs in for the first time gets an account"
    )
    created_at = models.DateTimeField()


class ClaimRule(models.Model):
    """A rule: people whose claim has this value get a team membership, or a role in the organisation.

    ``provider`` is a slug, because a provider of the environment has no row.
    """

    provider = models.CharField(max_length=40)
    claim = models.CharField(max_length=80)
    value = models.CharField(max_length=200)
    team = models.ForeignKey(Team, null=True, on_delete=models.CASCADE, related_name="+")
    lead = models.BooleanField(default=False, help_text="the membership has the role lead")
    role = models.CharField(max_length=8, default="", blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(team=None, lead=False) & ~Q(role="") | Q(team__isnull=False, role=""),
                name="a_claim_rule_grants_a_team_or_a_role",
            )
        ]

    @property
    def name(self) -> str:
        """Return the rule in words, for the audit log."""
        granted = self.role or f"{'lead' if self.lead else 'member'} of {self.team.slug if self.team else ''}"
        return f"{self.claim}={self.value}: {granted}"


class ClaimGrant(models.Model):
    """A membership or a role that a rule gave to a person. Rules take away only what rules gave."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="claim_grants")
    provider = models.CharField(max_length=40)
    team = models.ForeignKey(Team, null=True, on_delete=models.CASCADE, related_name="+")
    role = models.CharField(max_length=8, default="", blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "provider", "team"], condition=Q(role=""), name="one_grant_of_a_team"
            ),
            models.UniqueConstraint(
                fields=["user", "provider", "role"], condition=~Q(role=""), name="one_grant_of_a_role"
            ),
        ]


class BreakGlassLink(models.Model):
    """A one-time link with which an operator signs in when no provider works. Only its hash is stored."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    code_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class DirectorySync(models.Model):
    """One comparison of the connected people with an LDAP directory. It is never changed.

    ``provider`` is a slug, because a provider of the environment has no row.
    """

    class Outcome(models.TextChoices):
        DONE = "done"
        REFUSED = "refused"  # too many people would have lost something: nothing was changed
        FAILED = "failed"  # the directory could not be read: nothing was changed

    provider = models.CharField(max_length=40)
    outcome = models.CharField(max_length=8)
    people = models.IntegerField(help_text="people who were compared")
    closed = models.IntegerField(help_text="accounts that were closed, or would have been")
    joined = models.IntegerField(help_text="people who got a team or a role, or would have")
    left = models.IntegerField(help_text="people who lost a team or a role, or would have")
    text = models.TextField(help_text="the result as a sentence")
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["provider", "-created_at"], name="last_sync_of_a_provider")]
