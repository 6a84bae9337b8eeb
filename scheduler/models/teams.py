"""Define teams and their projects."""

from __future__ import annotations

from django.db import models

from scheduler.core.model.snapshot import Priority
from scheduler.models.removal import PresentRows

PRIORITIES = [(int(p), p.name.lower()) for p in Priority]


class Team(models.Model):
    slug = models.SlugField(unique=True, max_length=40)
    name = models.CharField(unique=True, max_length=80)
    tag = models.CharField(max_length=3, help_text="two or three letters shown with its colour")
    colour = models.PositiveSmallIntegerField(default=1, help_text="index of the palette, 1 to 8")
    weight = models.PositiveIntegerField(default=1, help_text="weight in fair share")
    home_limit_gib = models.PositiveIntegerField(
        null=True, blank=True, help_text="largest size of a new home; empty: that of the pool"
    )
    highest_priority = models.PositiveSmallIntegerField(choices=PRIORITIES, default=int(Priority.HIGH))
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="removed; the row stays for charges and audit records; its name stays reserved",
    )

    objects = PresentRows["Team"]()
    with_removed = models.Manager["Team"]()

    def __str__(self) -> str:
        return self.name


class Project(models.Model):
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="projects")
    slug = models.SlugField(max_length=40)
    name = models.CharField(max_length=80)
    active = models.BooleanField(default=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "slug"], name="project_slug_once_per_team")]

    def __str__(self) -> str:
        return self.name
