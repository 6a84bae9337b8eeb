"""Define the errors of services.

A form shows the messages of ``Invalid`` next to their fields, or above the form if it has no such field. The
API answers with the HTTP status of the error, which is a 4xx status.

Another error, ``scheduler.core.rejection.OperationRejected``, means that the present state does not allow the
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allauth.core.exceptions import ReauthenticationRequired

from portal.wording.problems import input_problems, permission_problems
from scheduler.core.rejection import OperationRejected


class ServiceError(Exception):
    """Base class of service errors. ``status`` is the HTTP status of the API's response."""

    status = 400

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(ServiceError):
    """Invalid arguments of a service.

    ``fields`` contains one message for each invalid argument, with the value and the allowed values.
    """

    status = 400

    def __init__(self, fields: Mapping[str, str], values: Mapping[str, Any] | None = None) -> None:
        super().__init__("; ".join(fields.values()))
        self.fields = dict(fields)
        self.values = dict(values or {})


class NotAllowed(ServiceError):
    """The actor may see the object, but may not change it this way.

    If the actor may not even see the object, services raise ObjectNotFound instead.
    """

    status = 403


class FreshProofRequired(ReauthenticationRequired):  # type: ignore[misc]
    """The change needs a proof of identity from the last ``minutes`` minutes.

    A page then asks for the proof and carries out the posted form afterwards: allauth's middleware handles
    this exception. The API answers with status 403 and the code ``fresh_proof_required``.
    """

    code = "fresh_proof_required"

    def __init__(self, minutes: int) -> None:
        super().__init__(permission_problems.FRESH_PROOF_REQUIRED.format(minutes=minutes))
        self.minutes = minutes


class PlannerBudgetExceeded(ServiceError):
    """The user has used up the planning time of this period.

    ``wait`` is the number of seconds until the next period.
    """

    status = 429

    def __init__(self, wait: int) -> None:
        super().__init__(permission_problems.PLANNER_BUDGET_EXCEEDED.format(wait=wait))
        self.wait = wait


class ObjectNotFound(ServiceError):
    """An object does not exist, or the viewer may not see it.

    The message contains the field, the value and the allowed values.
    """

    status = 404

    def __init__(self, field: str, value: str, allowed: str) -> None:
        said = ascii(value)
        given = said if len(said) <= 60 else f"{said[:57]}..."
        super().__init__(input_problems.NOT_ALLOWED.format(field=field, given=given, allowed=allowed))
        self.field = field
        self.value = value[:100]


# A service that refuses a request raises one of these errors.
SERVICE_REFUSALS = (ServiceError, OperationRejected)
