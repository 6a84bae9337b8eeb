"""Define a form that calls one service and shows the service's errors at the fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from django import forms

from portal.errors import Invalid, NotAllowed, ServiceError
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected

Result = TypeVar("Result")


class ServiceForm(forms.Form):
    """A form that defines only fields and widgets. A service checks the rules for their values."""

    # Arguments of the service, each with the field that shows its errors.
    argument_fields: ClassVar[Mapping[str, str]] = {}

    def field_for_argument(self, argument: str) -> str | None:
        """Return the field that shows errors of a service argument, or None if no field does."""
        field = self.argument_fields.get(argument, argument)
        return field if field in self.fields else None

    def carry_out(self, verb: Callable[..., Result], **arguments: Any) -> Result | None:
        """Call the service ``verb`` with ``arguments`` and return its result.

        If the service rejects the arguments, add its errors to the form and return None. A missing permission
        (NotAllowed) is not caught: the user then gets the page for status 403.
        """
        try:
            return verb(**arguments)
        except NotAllowed:
            raise
        except Invalid as error:
            for name, message in error.fields.items():
                self.add_error(self.field_for_argument(name), message)
        except OperationRejected as error:
            self.add_error(self.field_for_argument(error.field), refusal_sentence(error))
        except ServiceError as error:
            self.add_error(None, error.message)
        return None
