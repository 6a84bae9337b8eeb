"""Hide rows that are removed but kept, because charges, runs and audit records refer to them."""

from __future__ import annotations

from typing import TypeVar

from django.db import models

Row = TypeVar("Row", bound=models.Model)


class PresentRows(models.Manager[Row]):
    """The manager of the rows whose ``removed_at`` is empty. Foreign keys still lead to removed rows."""

    def get_queryset(self) -> models.QuerySet[Row]:
        return super().get_queryset().filter(removed_at__isnull=True)
