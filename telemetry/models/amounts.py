"""Define the database column for amounts that keep the decimals of their currency."""

from __future__ import annotations

from typing import Any

from django.db import models


class CurrencyAmountField(models.DecimalField):  # type: ignore[type-arg]
    """An amount with the decimals of its currency: ``12`` JPY, ``12.00`` EUR, ``12.000`` KWD.

    The column has no fixed number of decimals, so that a value keeps the decimals with which it was stored.
    """

    def __init__(self, **options: Any) -> None:
        """Set the limits that forms and checks use: 14 digits before the point, 3 decimals."""
        super().__init__(**{**options, "max_digits": 17, "decimal_places": 3})

    def deconstruct(self) -> Any:
        """Keep the limits out of migrations. They are the same for each column."""
        name, path, args, options = super().deconstruct()
        return (
            name,
            path,
            args,
            {k: v for k, v in options.items() if k not in ("max_digits", "decimal_places")},
        )

    def db_type(self, connection: Any) -> str:
        """Return ``numeric``: PostgreSQL then keeps the decimals of each value."""
        return "numeric"
