"""Define texts of the start page and of parts that all pages share."""

from __future__ import annotations

PACE = " {forecast} are forecast for the end of the month."
NOTHING_OF_YOURS = "Nothing of yours runs or waits."
OBJECT_NOT_FOUND = "There is no {what} at this address, or you may not see it."
IN_NO_TEAM = "In no team yet"
SIMULATED_READINGS = (
    "{hosts} simulated: their GPU readings follow what the processes declare; the processes are real."
)
SIMULATED_HISTORY = "Everything before {day} {time:%b %Y %H:%M} is simulated history."
LOADING_HISTORY = "Loading it: {progress}."
DURATION_HELP = "Such as 90 s, 15 min or 2 h."
DURATION_INVALID = "{label} is {given!a}; allowed: {allowed}."
HOST_CHANGES_IT = "Its host changes it"
WAITS_FOR_HOST = "Waits for the host"


def array_note(summary: str, held: str, cost: str) -> str:
    """Return the note on the card of a job array.

    ``summary`` counts its tasks by state. ``held`` and ``cost`` are texts; "" if there is none.
    """
    holding = f" They hold {held}{f' and cost {cost} so far' if cost else ''}." if held else ""
    return f"Array of {summary}.{holding} Below: its first task that has not ended."
