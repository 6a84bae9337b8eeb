"""Short forms for the migrations that create the tables of version 0.0."""

import uuid
from collections.abc import Sequence
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models.constraints import BaseConstraint

ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")
SINGLE_ROW_ID = models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)
PUBLIC_ID = models.UUIDField(default=uuid.uuid4, editable=False, unique=True)


def table(
    name: str,
    /,
    *,
    indexes: Sequence[models.Index] = (),
    constraints: Sequence[BaseConstraint] = (),
    options: dict[str, Any] | None = None,
    managers: Sequence[tuple[str, models.Manager]] = (),
    **columns: models.Field,
) -> migrations.CreateModel:
    """Return the operation that creates a model with these columns, in this order."""
    options = {**(options or {}), "indexes": list(indexes), "constraints": list(constraints)}
    return migrations.CreateModel(name, list(columns.items()), options, managers=list(managers))


def flag(help_text: str = "") -> models.BooleanField:
    """Return a boolean column that is false by default."""
    return models.BooleanField(default=False, help_text=help_text)


def optional_text(max_length: int, **arguments: Any) -> models.CharField:
    """Return a text column that is empty by default."""
    return models.CharField(blank=True, default="", max_length=max_length, **arguments)


def optional_time(help_text: str = "", **arguments: Any) -> models.DateTimeField:
    """Return a column with a point in time or NULL."""
    return models.DateTimeField(blank=True, help_text=help_text, null=True, **arguments)


def optional_array(base_field: models.Field, help_text: str = "") -> ArrayField:
    """Return an array column that is empty by default."""
    return ArrayField(base_field, blank=True, default=list, help_text=help_text)


def optional_link(to: str, on_delete: Any, **arguments: Any) -> models.ForeignKey:
    """Return a foreign key that may be NULL."""
    return models.ForeignKey(to, on_delete, blank=True, null=True, **arguments)


def spaced(*values: str) -> list[tuple[str, str]]:
    """Return choices that are labelled by their value, with spaces for underscores."""
    return [(value, value.replace("_", " ")) for value in values]


def titled(*values: str) -> list[tuple[str, str]]:
    """Return choices that are labelled by their value in title case."""
    return [(value, value.replace("_", " ").title()) for value in values]
