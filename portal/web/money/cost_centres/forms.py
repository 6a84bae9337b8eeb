"""Define the forms of cost centres and of splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms

from portal.models import User
from portal.reads.money.cost_centres import form_key, visible_payers
from portal.services.money.cost_centres import directory
from portal.web.page.service_form import ServiceForm
from portal.wording.pages.money import cost_centre_pages, money_pages
from scheduler.models import Pool
from telemetry.models import CostCentre

SHARE_ROWS = 4
LOCAL_TIME = {"type": "datetime-local"}


class CostCentreEntryForm(ServiceForm):
    name = forms.CharField(label="Name", max_length=directory.MAX_NAME_LENGTH, required=False)
    postal_address = forms.CharField(
        label="Postal address",
        max_length=directory.MAX_ADDRESS_LENGTH,
        required=False,
        widget=forms.Textarea(attrs={"rows": 4}),
    )
    purchase_order = forms.CharField(
        label="Purchase order reference", max_length=directory.MAX_PURCHASE_ORDER_LENGTH, required=False
    )


class NewCostCentreForm(CostCentreEntryForm):
    field_order = ("code", "name", "postal_address", "purchase_order")
    code = forms.CharField(label="Code", max_length=40, help_text=cost_centre_pages.CODE_HINT)


class RetirementForm(ServiceForm):
    retired_from = forms.DateTimeField(label="From", widget=forms.DateTimeInput(attrs=LOCAL_TIME))
    why = forms.CharField(label="Note", required=False, max_length=300, help_text="Stored in the audit log.")


class SplitForm(ServiceForm):
    argument_fields: ClassVar[Mapping[str, str]] = {
        "project": "payer",
        "pool": "payer",
        "shares": "code_1",
    }
    payer = forms.ChoiceField(label="Of", help_text=cost_centre_pages.PAYER_HINT)
    valid_from = forms.DateTimeField(
        label="From",
        help_text=cost_centre_pages.START_HINT,
        widget=forms.DateTimeInput(attrs=LOCAL_TIME, format="%Y-%m-%dT%H:%M"),
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.payers = {form_key(payer): payer for payer in visible_payers(user)}
        fields: dict[str, Any] = self.fields
        fields["payer"].choices = [
            (key, money_pages.PAYER_LABELS[key.partition(":")[0]].format(name=payer.name, team=payer.team))
            for key, payer in self.payers.items()
        ]
        codes = [
            (row.code, str(row)) for row in CostCentre.objects.filter(retired_from=None).order_by("code")
        ]
        for number in range(1, SHARE_ROWS + 1):
            first = number == 1
            fields[f"code_{number}"] = forms.ChoiceField(
                label=cost_centre_pages.CODE_LABEL if first else cost_centre_pages.NEXT_CODE_LABEL,
                choices=[("", "None"), *codes],
                required=first,
            )
            fields[f"percent_{number}"] = forms.CharField(
                label=cost_centre_pages.PERCENT_LABEL,
                max_length=20,
                required=first,
                initial="100" if first else "",
            )
        fields["why"] = forms.CharField(
            label="Note", required=False, max_length=300, help_text="Stored in the audit log."
        )

    def share_fields(self) -> list[tuple[forms.BoundField, forms.BoundField]]:
        """Return the fields of code and percent of each share."""
        return [(self[f"code_{number}"], self[f"percent_{number}"]) for number in range(1, SHARE_ROWS + 1)]

    def arguments(self) -> dict[str, Any]:
        """Return the chosen project or pool, the shares and the date as arguments of the service."""
        given = self.cleaned_data
        payer = self.payers[given["payer"]]
        rows = ((given[f"code_{number}"], given[f"percent_{number}"]) for number in range(1, SHARE_ROWS + 1))
        return {
            "pool" if isinstance(payer, Pool) else "project": payer,
            "shares": [(code, percent) for code, percent in rows if code or percent],
            "valid_from": given["valid_from"],
        }
