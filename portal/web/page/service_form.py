"""A form that calls one service and shows the service's refusal beside the fields it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from django import forms

from portal.errors import Conflict, Invalid, NotAllowed, ServiceError

Result = TypeVar("Result")


class ServiceForm(forms.Form):
    """The rules are the service's; the form only knows how its fields look."""

    argument_fields: ClassVar[
        Mapping[str, str]
    ] = {}  # argument of the service: the field that shows what is wrong with it

    def field_for_argument(self, argument: str) -> str | None:
        """The field beside which a problem of a verb's argument is told; None where no field is that."""
        field = self.argument_fields.get(argument, argument)
        return field if field in self.fields else None

    def carry_out(self, verb: Callable[..., Result], **arguments: Any) -> Result | None:
        """Call ``verb`` with ``arguments``. None when it refused: its words are then among the form's errors.

        A person who may not do it at all gets the page that says so (NotAllowed passes).
        """
        try:
            return verb(**arguments)
        except NotAllowed:
            raise
        except Invalid as error:
            for name, message in error.fields.items():
                self.add_error(self.field_for_argument(name), message)
        except Conflict as error:
            self.add_error(self.field_for_argument(error.field), error.message)
        except ServiceError as error:
            self.add_error(None, error.message)
        return None
