"""Format the numbers of a reason or a notice: the values that its sentence contains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portal import policy
from portal.wording.formatting import Numbers, date_and_time, gpus, model_name


class ReasonNumbers:
    """The numbers of a reason, with methods that format them for one viewer.

    A missing number gives "". The name of a team or a workload appears only if the viewer may see it.
    """

    def __init__(self, numbers: Numbers, viewer: policy.Viewer | None) -> None:
        self.numbers = numbers
        self.viewer = viewer

    def get(self, *names: str) -> Any:
        return next((self.numbers[name] for name in names if self.numbers.get(name) is not None), None)

    def slots(self, before: str, *names: str) -> str:
        value = self.get(*names)
        return "" if value is None else f"{before}{gpus(value)}"

    def time(self, before: str, *names: str) -> str:
        value = self.get(*names)
        return "" if value is None else f"{before}{date_and_time(value)}"

    def plain(self, before: str, *names: str, after: str = "") -> str:
        value = self.get(*names)
        return (
            ""
            if value is None
            else f"{before}{value:,}{after}"
            if isinstance(value, int | float)
            else f"{before}{value}{after}"
        )

    def model(self) -> str:
        value = self.get("model", "models")
        if not value:
            return "GPUs"
        return (
            " or ".join(map(model_name, value)) if isinstance(value, list | tuple) else model_name(str(value))
        )

    def of_model_text(self) -> str:
        """Return `` of H100 80GB``; "" if the numbers name no model."""
        return f" of {self.model()}" if self.get("model", "models") else ""

    def is_plural(self, name: str) -> bool:
        """Return True if the number is above 1."""
        value = self.get(name)
        return isinstance(value, int) and value > 1

    def team(self, otherwise: str = "another team") -> str:
        """Return the name of the team if the viewer may know it, otherwise ``otherwise``."""
        value = self.get("team", "for_team")
        if not isinstance(value, int):
            return otherwise
        if self.viewer is None:
            return otherwise
        team = policy.named_teams(self.viewer).filter(pk=value).first()
        return team.name if team else otherwise

    def workload(self, otherwise: str = "another workload") -> str:
        """Return the name of the workload if the viewer may see it, otherwise ``otherwise``."""
        value = self.get("workload", "for_workload")
        if not isinstance(value, int) or self.viewer is None:
            return otherwise
        workload = policy.visible_workloads(self.viewer).filter(pk=value).first()
        return workload.name if workload else otherwise

    def dependency_name(self) -> str:
        """Return a text for the workload or the array that must end first.

        It contains a name only if the viewer may see the workload or the array.
        """
        value = self.get("array")
        if not isinstance(value, int):
            return self.workload("another workload")
        array = None if self.viewer is None else policy.visible_arrays(self.viewer).filter(pk=value).first()
        return f"every task of {array.name}" if array else "every task of an array"


SentenceBuilder = Callable[[ReasonNumbers], str]
