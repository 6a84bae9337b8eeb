"""Hide removed rows. Removed rows stay in the database, because charges, runs and audit records use them."""

from __future__ import annotations

from typing import TypeVar

from django.db import models

Row = TypeVar("Row", bound=models.Model)


class PresentRows(models.Manager[Row]):
    """A manager that returns only rows whose ``removed_at`` is empty.

    A foreign key can still lead to a removed row.
    """

    def get_queryset(self) -> models.QuerySet[Row]:
        return super().get_queryset().filter(removed_at__isnull=True)
