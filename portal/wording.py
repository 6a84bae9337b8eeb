"""Every sentence that people read about the engine's decisions, made here and nowhere else.

Codes come from ``scheduler.core.reasons`` (and a few of portal's own, see ``NOTICES``) with their numbers; a number that is not
there is left out of the sentence, never invented. Times are said in the current time zone (a page activates its viewer's).
Names of other teams' things are only said when ``viewer`` may see them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.utils import timezone

from portal import policy
from scheduler import snapshot
from scheduler.core.estimates import LEAST_RECORDS, PastStarts
from scheduler.core.explain import Alternative, Changed
from scheduler.core.model import SLOTS_PER_GPU, Priority
from scheduler.core.ordering import LARGE_OLDEST_AFTER, LARGE_UNITS, LONGEST_STRETCH, OLDEST_AFTER, STRETCH
from scheduler.models import Run, Workload
from scheduler.recurrence import ClockChange

Numbers = Mapping[str, Any]

# -- small words -------------------------------------------------------------------------------------------------------


def duration(value: timedelta | float | int | None) -> str:
    """As people say it: ``40 seconds``, ``26 minutes``, ``3 h 14 min``, ``2 days 4 h``. None is unknown."""
    if value is None:
        return "an unknown time"
    seconds = int(value.total_seconds() if isinstance(value, timedelta) else value)
    if seconds < 60:
        return _counted(seconds, "second")
    if seconds < 3600:
        return _counted(seconds // 60, "minute")
    if seconds < 48 * 3600:
        minutes = seconds % 3600 // 60
        return f"{seconds // 3600} h" + (f" {minutes:02d} min" if minutes else "")
    hours = seconds % 86_400 // 3600
    return f"{seconds // 86_400} days" + (f" {hours} h" if hours else "")


def moment(value: datetime | float | int | None) -> str:
    """``20 Nov 2026 14:30`` in the current time zone; seconds since the epoch or a datetime. None is unknown."""
    if value is None:
        return "an unknown time"
    at = value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
    return f"{timezone.localtime(at):%-d %b %Y %H:%M}"


def window(start: datetime | None, end: datetime | None) -> str:
    """``Sat 21 Nov 09:00 to 17:00``; the day of the end is named where it is another one. The year where it is not the start's."""
    if start is None or end is None:
        return "an unknown time"
    first, last = timezone.localtime(start), timezone.localtime(end)
    if first.date() == last.date():
        return f"{first:%a %-d %b %H:%M} to {last:%H:%M}"
    year = "" if first.year == last.year else f" {last:%Y}"
    return f"{first:%a %-d %b %H:%M} to {last:%a %-d %b}{year} {last:%H:%M}"


def gpus(slots: float | int | None) -> str:
    """Slots as GPUs: ``2 GPUs``, ``1 GPU``, ``0.14 GPU``."""
    if slots is None:
        return "an unknown number of GPUs"
    count = round(slots / SLOTS_PER_GPU, 2)
    return f"{count:g} GPU" if count <= 1 and count != 0 else f"{count:g} GPUs"


# -- reasons -----------------------------------------------------------------------------------------------------------


class _Facts:
    """Numbers of a reason, said in words; what is missing is empty."""

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
        return "" if value is None else f"{before}{moment(value)}"

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
        return " or ".join(map(_readable, value)) if isinstance(value, list | tuple) else _readable(str(value))

    def of_model(self) -> str:
        """`` of H100 80GB``; empty where the numbers name no model."""
        return f" of {self.model()}" if self.get("model", "models") else ""

    def several(self, name: str) -> bool:
        """Whether the number is above 1."""
        value = self.get(name)
        return isinstance(value, int) and value > 1

    def team(self, otherwise: str = "another team") -> str:
        """The name of the team in the numbers where the viewer may know it."""
        value = self.get("team", "for_team")
        if not isinstance(value, int):
            return otherwise
        if self.viewer is None:
            return otherwise
        found = policy.named_teams(self.viewer).filter(pk=value).first()
        return found.name if found else otherwise

    def workload(self, otherwise: str = "another workload") -> str:
        """The name of the workload in the numbers where the viewer may see it."""
        value = self.get("workload", "for_workload")
        if not isinstance(value, int) or self.viewer is None:
            return otherwise
        found = policy.visible_workloads(self.viewer).filter(pk=value).first()
        return found.name if found else otherwise


    def awaited(self) -> str:
        """What work waits for: another one, or every task of an array; by name where the viewer may see it."""
        value = self.get("array")
        if not isinstance(value, int):
            return self.workload("another workload")
        found = None if self.viewer is None else policy.visible_arrays(self.viewer).filter(pk=value).first()
        return f"every task of {found.name}" if found else "every task of an array"


Sentence = Callable[[_Facts], str]

# How a dependency has to have ended.
HOW_IT_HAS_TO_END = {"ok": "finish well", "any": "end", "not_ok": "end without finishing"}
CONDITIONS = {"ok": "finished", "any": "ended", "not_ok": "ended without finishing"}

REASONS: dict[str, Sentence] = {
    # why it starts
    "free_within_guarantee": lambda f: "It starts on free GPUs within its team's guarantee.",
    "free_borrowed": lambda f: (
        f"It starts on free GPUs{f.slots('; ', 'borrowed')}{' of them' if f.get('borrowed') else ''} beyond its team's guarantee, so it "
        "may be asked to make room for a team whose guarantee they are."
    ),
    "inside_reservation": lambda f: "It starts inside its reservation.",
    "reclaimed_guarantee": lambda f: (
        "It starts on GPUs that its team is guaranteed and had lent; the borrower made room."
    ),
    "outranked_within_team": lambda f: "It starts in the place of its own team's work of lower priority.",
    "own_static_pool": lambda f: "It starts in its team's own pool.",
    # why it is told to go
    "evicted_for_guarantee": lambda f: (
        f"Its GPUs were borrowed, and {f.team('the team')}, to whom they are guaranteed, needs them for {f.workload('its work')}. "
        "It is queued again with its place kept, and resumes from its checkpoint."
    ),
    "evicted_for_priority": lambda f: (
        f"{f.workload('Work')} of its own team has a higher priority and needs its GPUs. "
        "It is queued again with its place kept, and resumes from its checkpoint."
    ),
    "evicted_for_reservation": lambda f: (
        f"Its GPUs are reserved{f.time(' from ', 'start')}. It is queued again with its place kept, and resumes from its checkpoint."
    ),
    # why it waits: for ever, unless something changes
    "no_such_hardware": lambda f: (
        f"This pool has no GPU that is what it asks for{_asked(f)}. Ask for another model, less memory or whole GPUs."
    ),
    "too_big_for_any_host": lambda f: _too_big(f),
    "not_your_pool": lambda f: "This pool belongs to another team. Choose a shared pool.",
    "no_quota": lambda f: f"Its team has no quota for {f.model()} in this pool. A team lead can ask for one.",
    "over_workload_cap": lambda f: (
        f"It asks for {f.slots('', 'need') or 'more'}; one workload may have {f.slots('at most ', 'cap') or 'fewer'} in this pool. Ask for fewer."
    ),
    "over_runtime_cap": lambda f: (
        f"It asks to run {duration(f.get('asked'))}; this pool allows {duration(f.get('longest'))} at most. Launch it again with less."
    ),
    # why it waits: until somebody or something changes
    "over_quota": lambda f: (
        _never_within_quota(f)
        if _more_than(f, "limit")
        else f"Its team holds {f.slots('', 'held') or 'all it may'}{f.of_model()}"
        f"{f.slots(' and may hold ', 'limit') or f.slots(' and is guaranteed ', 'guaranteed')}; this needs {f.slots('', 'need') or 'more'}. "
        + (
            "It starts when work of its team ends."
            if f.get("may_borrow")
            else "It is not preemptible, so it may not borrow: it starts when work of its team ends."
        )
    ),
    "over_user_cap": lambda f: (
        f"One person may hold {f.slots('at most ', 'cap')} in this pool, and this needs {f.slots('', 'need')}. Ask for fewer."
        if _more_than(f, "cap")
        else f"Its owner holds {f.slots('', 'held') or 'as much as one person may'}{f.slots(' of at most ', 'cap')}; this needs {f.slots('', 'need') or 'more'}."
    ),
    "gpu_hours_used_up": lambda f: (
        f"Its team has used the {f.plain('', 'gpu_hours', after=' ') or ''}GPU-hours of {f.model()} that its guarantee is worth"
        f"{f.time('; they count anew from ', 'until')}. "
        + ("Until then nothing new of it starts on them." if f.get("may_borrow") else "It may not borrow, so it waits for that.")
    ),
    "budget_closed": lambda f: (
        f"The budget is used up{f.plain(': ', 'spent')}{f.plain(' of ', 'limit')}{f.plain(' ', 'currency')}. Finance can raise it."
    ),
    "dependency": lambda f: (
        f"It waits for {f.awaited()} to {_how_it_has_to_end(f)}"
        f"{', and for ' + _counted(int(f.get('workloads')) - 1, 'other') if f.several('workloads') else ''}."
    ),
    "array_limit": lambda f: (
        f"Its array lets {f.plain('', 'most_at_once') or 'so many'} of its tasks into the queue together; it is the turn of others."
    ),
    "backing_off": lambda f: f"Its last attempt failed; it tries again{f.time(' at ', 'until')}.",
    "reservation_not_started": lambda f: f"Its reservation has not begun yet{f.time('; it begins at ', 'start')}.",
    "reservation_over": lambda f: "Its reservation is over. Launch it again without one.",
    "reservation_not_yours": lambda f: (
        "Its reservation belongs to another project. Launch it again in its own project, or without one."
    ),
    "host_closed": lambda f: (
        f"The hosts that could run it take no new work{f.plain(': ', 'hosts')}{_of_them(f.get('hosts'))} cordoned, draining, "
        f"in maintenance, silent or unwell{f.plain(', ', 'too_weak', after=' keep workloads less apart than the pool demands')}."
    ),
    "isolation_too_weak": lambda f: "The host keeps workloads less apart than its pool demands, so nothing new starts on it.",
    # why it waits: its turn comes
    "waits_for_units": lambda f: (
        f"Its reservation has {f.plain('', 'of')} such GPUs, and this needs {f.plain('', 'need')}. Ask for fewer, or launch it without one."
        if f.get("reservation") and _more_than(f, "of")
        else f"It waits for its reservation's GPUs: it needs {f.plain('', 'need')}, {f.plain('', 'free')} of {f.plain('', 'of')} are free."
        if f.get("reservation")
        else f"It needs {f.plain('', 'need') or 'more'} {f.model()}{' on each of several hosts' if f.several('hosts') else ''}"
        f"{f.plain('; ', 'free', after=' are free now')}."
    ),
    "waits_for_eviction": lambda f: (
        f"Room is being made for it: {_counted(int(f.get('workloads') or 0), 'workload') if f.get('workloads') else 'borrowed work'} "
        + (
            f"of its own team, of lower priority, on {f.model()} was told to go."
            if f.get("own") and f.get("own") == f.get("workloads")
            else f"that borrowed {f.model()} was told to go."
        )
    ),
    "held_for_reservation": lambda f: (
        f"{f.plain('', 'free') or 'What is free'} GPUs are free, but promised to a reservation{f.time(' from ', 'start')}; it would not be done by then."
    ),
    "held_for_maintenance": lambda f: (
        f"The GPUs that could serve it go into maintenance{f.time(' at ', 'start')}{f.time(' until ', 'end')}."
    ),
    "behind_others": lambda f: (
        f"{f.plain('', 'free') or 'Some'} GPUs are free, but kept for {_counted(int(f.get('ahead') or 0), 'workload') if f.get('ahead') else 'work'} ahead of it."
    ),
    "behind_own_team": lambda f: (
        (
            "The room left within what one person may hold is kept for work of its owner ahead of it"
            if f.get("of") == "person"
            else f"The room left within its team's limit{' on ' + f.model() if f.get('model') else ''} is kept for work of its team ahead of it"
        )
        + f"{f.time(', expected to start at ', 'start')}; it would not be done by then."
    ),
    "spare_capacity_kept": lambda f: (
        f"What is free{f.slots(' (', 'free')}{')' if f.get('free') else ''} is kept for critical work."
    ),
    # why work is not taken into the queue
    "too_many_waiting": lambda f: (
        f"{'Its team' if f.get('of') == 'team' else 'Its owner'} has {f.plain('', 'waiting') or 'many'} notebooks and jobs waiting in "
        f"this pool; with {f.plain('', 'more') or 'any'} more there would be more than {f.plain('the ', 'limit', after=' that ')}one "
        f"{'team' if f.get('of') == 'team' else 'person'} may have. Submit it when some have started or are cancelled."
    ),
    # why a reservation does not fit
    "window_full": lambda f: (
        f"That window is full: {f.plain('', 'need') or 'what is'} asked, {f.plain('', 'free') or 'fewer'} of {f.plain('', 'total') or 'all'} could be promised for all of it."
    ),
    "reserved_units_missing": lambda f: (
        f"It has begun and has no GPUs yet: it needs {f.plain('', 'need') or 'more'}"
        f"{f.plain(' on ', 'hosts', after=' hosts') if f.several('hosts') else ''}; "
        f"{f.plain('', 'free') or 'fewer'} of {f.plain('', 'total') or 'all'} such GPUs could serve it until its end"
        f"{f.plain(', ', 'closed', after=' are out of service') if f.get('closed') else ''}. It is tried again all the time."
    ),
    "reserved_units_in_use": lambda f: (
        f"It has begun; {f.plain('', 'units') or 'some'} of its{f.plain(' ', 'need')} GPUs are still in use by "
        f"{_counted(int(f.get('workloads') or 0), 'workload') if f.get('workloads') else 'others'}. It gets them as soon as they are free."
    ),
    "window_eats_guarantees": lambda f: (
        f"That window would use {f.model()} that other teams are guaranteed: {f.slots('', 'need') or 'more'} asked, "
        f"{f.slots('', 'left') or 'fewer'} left for this team. Only an operator can allow it, when asked to."
    ),
    "extension_blocked": lambda f: (
        f"It can't keep its GPUs{f.time(' beyond ', 'end')}: {_in_the_way(f)}. Reserve the time after it beside it."
    ),
    # how it ended
    "finished": lambda f: "It finished.",
    "failed": lambda f: f"It failed{f.plain(' with exit code ', 'exit_code')}.",
    "checkpointed": lambda f: "It wrote its checkpoint and stopped when asked.",
    "killed_at_grace": lambda f: "It did not stop when asked and was killed at the end of its grace.",
    "out_of_memory": lambda f: "It used more memory than it may and was stopped.",
    "out_of_disk": lambda f: "Its temporary files took more of its host's disk than there is for it, so it was stopped.",
    "gpu_error": lambda f: (
        f"{_failed_gpu(f)}, and it ran on that GPU."
        if f.get("host") and f.get("event")
        else f"A GPU failed under it{f.plain(' (', 'xid', 'event', 'words', after=')')}."
    ),
    "host_lost": lambda f: "Its host fell silent.",
    "lease_lost": lambda f: "Its host lost touch with the portal and stopped it.",
    "cancelled": lambda f: (
        f"{f.plain('', 'by')} {'stopped it' if f.get('ran') else 'took it out of the queue'}"
        f"{f.plain(': ', 'why') if f.get('why') else ''}{'' if str(f.get('why') or '').endswith(('.', '!', '?')) else '.'}"
        if f.get("by")
        else "It was taken out of the queue."
        if f.get("ran") is False
        else "It was stopped."
    ),
    "time_limit": lambda f: "It reached its longest runtime.",
    "idle": lambda f: "It was idle too long: no busy kernel, nobody at work in it and a quiet GPU.",
    "start_failed": lambda f: "Its host could not start it.",
    "prolog_failed": lambda f: "The operator's preparation of its host failed. It is tried again, and none of its retries is used.",
    "host_full": lambda f: (
        f"{_full_disks(f.get('hosts'), f.get('full'))}. What could run it starts nothing new until there is room."
        if isinstance(f.get("hosts"), list) and isinstance(f.get("full"), int)
        else "The disk of its host is full. It is tried again, and none of its retries is used."
    ),
    "drained": lambda f: (
        f"{_failed_gpu(f)}. By the table of hardware events the host takes nothing new, and work that can move leaves it."
        if f.get("host") and f.get("event")
        else f"Its host{f.plain(' ', 'host')} is taken out of service{f.plain(': ', 'words')}."
    ),
    "dependency_never_met": lambda f: (
        f"It was to run once {f.awaited()} had "
        f"{CONDITIONS.get(str(f.get('condition')), 'ended as it had to')}; that can't happen any more"
        f"{', ' + ('one' if f.get('array') else 'it') + ' ended as ' + str(f.get('outcome')).replace('_', ' ') if f.get('outcome') else ''}."
    ),
}


def _more_than(f: _Facts, name: str) -> bool:
    """Whether it needs more than the number: then no end of anything makes room for it."""
    need, most = f.get("need"), f.get(name)
    return isinstance(need, int) and isinstance(most, int) and need > most


def _never_within_quota(f: _Facts) -> str:
    alone = "" if f.get("may_borrow") else ", since what is not preemptible may not borrow"
    return (
        f"Its team may hold {f.slots('', 'limit')}{f.of_model()} at most{alone}, and this needs {f.slots('', 'need')}: it does not start, "
        "whatever ends, before its team may hold more. A team lead can ask for that; or ask for fewer."
    )


def _how_it_has_to_end(f: _Facts) -> str:
    how = str(f.get("condition"))
    return "end, not all of them well" if how == "not_ok" and f.get("array") else HOW_IT_HAS_TO_END.get(how, "end")


def _failed_gpu(f: _Facts) -> str:
    """``GPU 3 of h3 failed (XID 79, GPU has fallen off the bus)``."""
    kind, _, number = str(f.get("event")).partition(":")
    said = f"{kind.upper()} {number}" if kind in ("xid", "ecc") and number else str(f.get("event"))
    return f"{f.plain('GPU ', 'gpu') or 'A GPU'} of {f.get('host')} failed ({said}{f.plain(', ', 'meaning') if f.get('meaning') else ''})"


def _in_the_way(f: _Facts) -> str:
    """What keeps a reservation from keeping its units."""
    others, serviced = int(f.get("reservations") or 0), int(f.get("maintenance") or 0)
    words = [
        f"{_counted(others, 'other reservation')} would lose what was promised" if others else "",
        f"maintenance begins on {_counted(serviced, 'GPU')} of them" if serviced else "",
    ]
    return " and ".join(word for word in words if word) or "others are promised them"


def _full_disks(hosts: list[str], full: int) -> str:
    """ "h3: its disk is full", "h3, h4 and 2 others: their disks are full"."""
    others = full - len(hosts)
    named = ", ".join(hosts) + (f" and {_counted(others, 'other')}" if others > 0 else "")
    return f"{named}: {'its disk is' if full == 1 else 'their disks are'} full"


def _of_them(hosts: object) -> str:
    """What goes on a number of hosts: `` of them is``, or `` are`` where it is not told."""
    return " are" if not hosts else " of them is" if hosts == 1 else " of them are"


def _too_big(f: _Facts) -> str:
    """No host has what it asks for on one; or enough GPUs are there, and something beside them is not."""
    units, largest = f.get("units"), f.get("largest")
    if f.get("hosts_with_labels") == 0:
        return "No host of this pool has the labels it asks for. Ask without them, or in another pool."
    if isinstance(units, int) and isinstance(largest, int) and largest >= units and not f.several("hosts"):
        return f"No host has the CPU, the memory or the NVLink that it asks for beside {_counted(units, 'GPU')}. Ask for less."
    if isinstance(units, int) and isinstance(largest, int) and largest >= units:
        return (
            f"This pool has fewer than {f.plain('', 'hosts')} hosts that could give {_counted(units, 'GPU')} each as asked for. "
            "Ask for fewer hosts, or for other GPUs."
        )
    subject = f"There are not {f.plain('', 'hosts')} hosts" if f.several("hosts") else "No host is"
    asked = _counted(units, "GPU") if isinstance(units, int) else "more GPUs"
    return (
        f"{subject} big enough: it asks for {asked} on one host, the largest has {f.plain('', 'largest') or 'fewer'}. "
        "Ask for fewer on each host."
    )


def _asked(f: _Facts) -> str:
    """The properties asked for, in brackets."""
    words = [
        f.model() if f.get("models") else "",
        f.plain("", "profile"),
        f.plain("at least ", "min_memory_mib", after=" MiB") if f.get("min_memory_mib") else "",
        f"compute capability {f.get('min_compute_capability') / 10:.1f}" if f.get("min_compute_capability") else "",
    ]
    said = ", ".join(word for word in words if word)
    return f" ({said})" if said else ""


def reason(code: str, numbers: Numbers | None = None, viewer: policy.Viewer | None = None) -> str:
    """One sentence for a reason code and its numbers. An empty code is an empty sentence."""
    if not code:
        return ""
    sentence = REASONS.get(code)
    said = sentence(_Facts(numbers or {}, viewer)) if sentence else f"{code.replace('_', ' ').capitalize()}."
    hosts = (numbers or {}).get("failed_on_hosts")
    return f"{said} It failed on {hosts} hosts, so it is not tried again." if isinstance(hosts, int) else said


def not_compared(mine: Workload, theirs: Workload) -> str:
    """Why it can't be said why one goes before the other."""
    if mine.state == "ended":
        return f"{mine.name} has ended ({state_word(mine)[1].lower()}), so it waits for nobody any more."
    if mine.state != "queued":
        return f"{mine.name} has its GPUs: nobody goes before it."
    if mine.pk == theirs.pk:
        return f"That is {mine.name} itself. Name another workload that waits or runs in {mine.pool.name}."
    if theirs.state == "ended":
        return f"{theirs.name} has ended ({state_word(theirs)[1].lower()}), so it is not before {mine.name} any more."
    return f"{theirs.name} is in {theirs.pool.name} and {mine.name} waits in {mine.pool.name}: they want different GPUs."


def why_waits(workload: Workload, viewer: policy.Viewer | None = None) -> str:
    """One sentence for why a workload waits; empty before the engine looked at it."""
    return reason(workload.reason_code, why_numbers(workload), viewer)


def why_numbers(workload: Workload) -> dict[str, Any]:
    """The numbers of why it waits; of a dependency also how that has to end. A query for such a one only."""
    numbers = dict(workload.reason_numbers)
    if workload.reason_code == "dependency":
        on = {"on_array" if "array" in numbers else "on": numbers.get("array", numbers.get("workload"))}
        numbers["condition"] = workload.dependencies.filter(**on).values_list("condition", flat=True).first()
    return numbers


def never_starts(code: str, numbers: Numbers, viewer: policy.Viewer | None = None) -> str:
    """One sentence for why something would not start whatever ended."""
    if code != "spare_capacity_kept":
        return reason(code, numbers, viewer)
    free, spare = numbers.get("free") or 0, numbers.get("spare") or 0
    return (
        f"{gpus(spare)} of this pool are kept for critical work, which leaves {gpus(free - spare)} for the rest; this needs "
        f"{gpus(numbers.get('need'))}. Ask for fewer."
    )


def decision(kind: str, code: str, numbers: Numbers, viewer: policy.Viewer | None = None) -> str:
    """One sentence for a decision: its reason, and where a gang ended for one of its members, which."""
    if kind not in ("restarted", "ended"):
        return reason(code, numbers, viewer)
    return f"Its part {numbers.get('rank')} on {numbers.get('host')} was the first to end. {reason(code, numbers, viewer)}"


# -- expected starts, and why others go first --------------------------------------------------------------------------


def likely_start(
    expected: datetime | None, likely: tuple[datetime, datetime] | None, now: datetime, *, short: bool = False
) -> str:
    """``likely between 14:20 and 15:05`` (``short``: ``14:20 – 15:05``); without a range ``about 14:20``; ``not known``."""
    if expected is None:
        return "not known"
    soon = expected <= now + timedelta(seconds=30)
    if likely is None or likely[1] <= now + timedelta(minutes=2):
        return "any moment" if soon else f"about {_clock(expected, now)}"
    first, last = likely
    until = _clock(last, now if timezone.localtime(first).date() == timezone.localtime(now).date() else first)
    if soon:
        return f"now – {until}" if short else f"any moment, likely by {until}"
    begin = "now" if first <= now + timedelta(minutes=1) else _clock(first, now)
    return f"{begin} – {until}" if short else f"likely between {begin} and {until}"


def _clock(at: datetime, now: datetime) -> str:
    """``14:20``; with its day where that is not ``now``'s."""
    local = timezone.localtime(at)
    return f"{local:%H:%M}" if local.date() == timezone.localtime(now).date() else f"{local:%a} {local.day} {local:%b %H:%M}"


def place_terms(numbers: Numbers) -> list[tuple[str, str]]:
    """Why these GPUs of all that fitted: the terms of the placement rule by name, in GPUs; empty where there are none."""
    terms = [numbers.get(name) for name in ("waste_before", "waste_after", "model_price", "slot_price")]
    if not all(isinstance(term, int) for term in terms):
        return []
    before, after, model, slot = (term / 1000 for term in terms if isinstance(term, int))
    return [
        ("Unusable remainder of its hosts before", f"{before:.3f} GPU"),
        ("and after", f"{after:.3f} GPU"),
        ("Price of taking this model from asks that can use no other", f"{model:.3f} GPU"),
        ("Price of taking room that larger asks need", f"{slot:.3f} GPU"),
        ("Gain: remainder saved less both prices; the highest wins", f"{before - after - model - slot:+.3f} GPU"),
    ]


def another_way(other: Alternative) -> str:
    """What to ask for instead: ``2 × A100 40GB``, ``2 hosts × 8 H100 80GB, at most 4 h``."""
    ask = other.ask
    models = " or ".join(map(_readable, ask.models)) or "any GPU"
    unit = f"{ask.profile} of {models}" if ask.profile else models
    words = [f"{ask.hosts} hosts × {ask.units} {unit}" if ask.hosts > 1 else f"{ask.units} × {unit}"]
    ways = {
        Changed.RUNTIME: f"at most {duration(other.max_runtime_seconds)}",
        Changed.PREEMPTIBLE: "if it may be preempted",
        Changed.PRIORITY: f"with {PRIORITY_WORDS[int(other.priority)]} priority",
    }
    return ", ".join(words + [ways[changed] for changed in other.changed if changed in ways])


def another_time(workload: Workload, start: datetime, end: datetime, needs_approval: bool) -> str:
    """When what a workload asks for could be reserved, and what that needs."""
    asked = another_way(Alternative(snapshot.ask_of(workload), False, None))
    needs = "needs an operator's approval" if needs_approval else "is confirmed at once"
    return f"{asked}, {window(start, end)}: {needs}"


def clock_change(change: ClockChange, time_zone: str) -> str:
    """What is different of an occurrence on whose day the clock is put forward or back."""
    day = f"{change.day:%a %-d %b %Y}"
    if change.window is None:
        return f"{day}: the clock of {time_zone} is put forward over all of its hours; nothing is reserved on that day."
    start, end = (at.astimezone(ZoneInfo(time_zone)) for at in change.window)
    parts = [f"{at:%H:%M} does not exist" for at in change.missing]
    parts += [f"{at:%H:%M} comes twice and the first counts" for at in change.doubled]
    if change.longer:
        parts.append(f"it lasts {duration(abs(change.longer))} {'longer' if change.longer > timedelta() else 'less'}")
    return (
        f"{day}: the clock of {time_zone} is put {'back' if _goes_back(change) else 'forward'}: {', '.join(parts)}."
        f" It is from {start:%H:%M} to {end:%H:%M}."
    )


def _goes_back(change: ClockChange) -> bool:
    return bool(change.doubled) or change.longer > timedelta()


def past_starts(past: PastStarts) -> str:
    """How good the expected starts of a pool were, and whether there is enough of a record to tell ranges from; and how much
    of that a demo simulated."""
    if past.simulated:
        whose = "All" if past.simulated == past.counted else f"{past.simulated} of {past.counted}"
        return f"{_past_starts(past)} {whose} of these waits are simulated: the demo's past, by this engine."
    return _past_starts(past)


def _past_starts(past: PastStarts) -> str:
    if not past.counted:
        return "Nothing has waited and started in this pool lately: there is no record to tell a range from."
    off = f"half were off by more than {duration(past.median_error)}"
    if not past.is_enough:
        return f"Only {past.counted} waited and started in this pool lately: too few to tell a range from; {off}."
    if past.ranged < LEAST_RECORDS:
        return (
            f"The range comes from the last {past.counted} that waited in this pool; {off}. "
            "Too few were told a range yet to say how many kept to it. It is no guarantee."
        )
    return (
        f"Of the last {past.ranged} that were told a range in this pool, {round(100 * past.in_time / past.ranged)} % "
        f"started by its upper end; {off}. It is no guarantee."
    )


# In a list: what puts it first (scheduler.core.ordering.Part).
FIRST_BECAUSE: dict[str, str] = {
    "reservation": "runs inside a reservation",
    "room_is_made": "others already make room for it",
    "within_guarantee": "within its team's guarantee",
    "below_guarantee": "its team is below its guarantee",
    "fair_share": "its team used less of its fair share",
    "own_team": "your own team's turn went to other work",
    "priority": "has a higher priority in your team",
    "aged": "has waited too long already",
    "submitted": "has waited longer",
    "place": "asked earlier, or is shorter",
    "number": "was asked for first",
}

PRIORITY_WORDS = {int(priority): priority.name.lower() for priority in Priority}

# Sentences with numbers; ``mine_`` and ``theirs_`` tell the two apart (portal.selectors.queue.why_them).
WHY_FIRST: dict[str, Callable[[_Facts], str]] = {
    "there_first": lambda f: (
        f"It has had its GPUs since {_time_of(f, 'theirs_started')}; yours was asked for at {_time_of(f, 'mine_submitted')}. What runs is "
        "only stopped for a team's guarantee, for a higher priority in its own team, or for a reservation."
    ),
    "fit": lambda f: (
        f"Its turn comes after yours, but it asks for {_ask_of(f, 'theirs')}, and there is room for that which does "
        f"not do for yours: {_ask_of(f, 'mine')}. What goes past yours may not delay its expected start."
    ),
    "turned_away": lambda f: "Yours does not stand in line at present: its reason is told on its own page.",
    "reservation": lambda f: "It runs inside a reservation, whose GPUs were promised to its project before.",
    "room_is_made": lambda f: "Others were already told to make room for it; what is freed for it is kept for it.",
    "within_guarantee": lambda f: (
        f"All that it asks for is within what {f.plain('', 'theirs_team')} is guaranteed{_quota_of(f, 'theirs')}; "
        f"what yours asks for is not within the guarantee of {f.plain('', 'mine_team')}{_quota_of(f, 'mine')}. "
        "What is guaranteed comes before what is borrowed."
    ),
    "below_guarantee": lambda f: (
        f"{f.plain('', 'theirs_team')} holds less than it is guaranteed{_quota_of(f, 'theirs')}; yours would only be "
        f"borrowed by {f.plain('', 'mine_team')}{_quota_of(f, 'mine')}. Teams below their guarantee come before those that borrow."
    ),
    "fair_share": lambda f: (
        f"Both would borrow, and who used less by its weight borrows first: {f.plain('', 'theirs_team')} "
        f"{f.get('theirs_share') or 0:,.0f} GPU-hours, {f.plain('', 'mine_team')} {f.get('mine_share') or 0:,.0f}"
        f"{', each halved every ' + duration(f.get('half_life')) if f.get('half_life') else ''}."
    ),
    "own_team": lambda f: (
        f"Other work of {f.plain('', 'mine_team')} stands before yours; by the time its turn was over, this one's had come."
    ),
    "priority": lambda f: (
        f"Both are of {f.plain('', 'mine_team')}; its priority is {PRIORITY_WORDS.get(f.get('theirs_priority'), '')}, yours "
        f"{PRIORITY_WORDS.get(f.get('mine_priority'), '')}."
    ),
    "aged": lambda f: (
        f"It has waited for {duration(f.get('theirs_waited'))}. A team's oldest job goes before others of equal standing after "
        f"{duration(OLDEST_AFTER)}, its oldest over {LARGE_UNITS} GPUs after {duration(LARGE_OLDEST_AFTER)}."
    ),
    "submitted": lambda f: (
        f"Both have waited so long that only this counts: it was asked for at {_time_of(f, 'theirs_submitted')}, yours at "
        f"{_time_of(f, 'mine_submitted')}."
    ),
    "place": lambda f: (
        f"A place in line is the time of asking plus {STRETCH} times the expected run time, at most {duration(LONGEST_STRETCH)} more. "
        f"It: asked {_time_of(f, 'theirs_submitted')}, expected to run {duration(f.get('theirs_predicted'))}, so "
        f"{_time_of(f, 'theirs_place')}. Yours: asked {_time_of(f, 'mine_submitted')}, expected to run "
        f"{duration(f.get('mine_predicted'))}, so {_time_of(f, 'mine_place')}. Expected run times come from similar jobs that finished."
    ),
    "number": lambda f: "They are equal in everything that counts; it was asked for first.",
}


def why_first(rule: str, numbers: Numbers) -> str:
    """The decisive rule between two workloads, in a sentence or two; ``rule`` is a key of ``WHY_FIRST``."""
    return WHY_FIRST[rule](_Facts(numbers, None))


def without_the_other(mine: str, theirs: str, why_not: str) -> str:
    """What would be if the other one was not there; ``why_not`` is empty where this one would start."""
    if not why_not:
        return f"If {theirs} was not there, {mine} would start now."
    return f"Even if {theirs} was not there, {mine} would not start now. {why_not}"


def _ask_of(f: _Facts, whose: str) -> str:
    """``2 GPUs``, ``8 GPUs on each of 2 hosts``, ``1 × 1g.10gb``."""
    units, profile = int(f.get(f"{whose}_units") or 0), f.get(f"{whose}_profile")
    asked = f"{units} × {profile}" if profile else _counted(units, "GPU")
    return f"{asked} on each of {f.get(f'{whose}_hosts')} hosts" if f.several(f"{whose}_hosts") else asked


def _quota_of(f: _Facts, whose: str) -> str:
    """In brackets, by model: what a team is guaranteed and holds."""
    lines = [
        f"{_readable(name)}: {gpus(guaranteed)} guaranteed, holds {gpus(held)}"
        for name, guaranteed, held in f.get(f"{whose}_quota") or ()
    ]
    return f" ({'; '.join(lines)})" if lines else " (none in this pool)"


def _time_of(f: _Facts, name: str) -> str:
    """``14:20``, with its day where that is not the ``now`` of the numbers."""
    at, now = f.get(name), f.get("now")
    if at is None or now is None:
        return "an unknown time"
    return _clock(datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC))


# -- states ------------------------------------------------------------------------------------------------------------

# State: (shape in icons.svg, word, tone). Shape and word say it, the tone only helps.
WORKLOAD_STATES: dict[str, tuple[str, str, str]] = {
    "queued": ("queued", "Queued", "queued"),
    "placed": ("starting", "Placed", "starting"),
    "starting": ("starting", "Starting", "starting"),
    "running": ("running", "Running", "running"),
    "notice": ("ending", "Asked to stop", "ending"),
    "stopping": ("ending", "Stopping", "ending"),
}
OUTCOMES: dict[str, tuple[str, str, str]] = {
    "finished": ("ended", "Finished", "ended"),
    "failed": ("failed", "Failed", "failed"),
    "cancelled": ("cancelled", "Stopped", "ended"),
    "time_limit": ("ended", "Time limit", "ended"),
    "idle": ("idle", "Idle", "idle"),
    "checkpointed": ("ended", "Checkpointed", "ended"),
    "killed_at_grace": ("failed", "Killed", "failed"),
    "out_of_memory": ("failed", "Out of memory", "failed"),
    "out_of_disk": ("failed", "Out of disk", "failed"),
    "gpu_error": ("failed", "GPU error", "failed"),
    "host_lost": ("lost", "Host lost", "failed"),
    "lease_lost": ("lost", "Host lost", "failed"),
    "start_failed": ("failed", "Could not start", "failed"),
    "prolog_failed": ("failed", "Could not start", "failed"),
    "host_full": ("failed", "Could not start", "failed"),
    "drained": ("cancelled", "Drained", "ended"),
    "reservation_over": ("ended", "Reservation over", "ended"),
    "dependency_never_met": ("cancelled", "Never its turn", "ended"),
}


def state_word(workload: Workload, by: str = "") -> tuple[str, str, str]:
    """(shape, word, tone) of a workload: its state, or once it has ended how it ended; ``by`` whom, where a person stopped it."""
    if workload.state == "queued" and workload.attempt:
        return ("preempted", "Waits to resume", "queued")
    if workload.state == "ended" and workload.outcome == "cancelled":
        word = "Stopped" if workload.attempt else "Taken back"
        return ("cancelled", f"{word} by {by}" if by else word, "ended")
    if workload.state == "ended":
        return OUTCOMES.get(workload.outcome, ("ended", "Ended", "ended"))
    return WORKLOAD_STATES[workload.state]


def array_state(array: Any) -> str:
    """The word for a whole array, which came with its counts."""
    if array.running or array.waiting:
        return "Running" if array.running else "Waiting"
    if array.failed:
        return f"{array.failed} failed"
    return "Finished" if array.finished else "Cancelled"


def steps(workload: Workload, run: Run | None) -> list[dict[str, Any]]:
    """The real steps to a running workload, in order.

    Each: ``word``, ``at`` (datetime or None), ``state`` (done, now or ahead), ``detail`` (text, may be empty).
    ``run`` is the first run of the present attempt, None while it waits.
    """
    notebook = workload.kind == "notebook"
    where = f"on {run.host.name}" if run else ""
    marks: list[tuple[str, datetime | None, str]] = [
        ("Queued", workload.queued_at, why_waits(workload) if run is None else ""),
        ("Placed", run.placed_at if run else None, where),
        ("Starting", run.starting_at if run else None, run.step if run else ""),
        ("Running", run.running_at if run else None, ""),
    ]
    if notebook:
        marks.append(("Ready", run.ready_at if run else None, ""))
    last = max((index for index, (_, at, _) in enumerate(marks) if at is not None), default=0)
    complete = last == len(marks) - 1
    return [
        {
            "word": word,
            "at": at,
            "state": "done" if index < last or (index == last and complete) else "now" if index == last else "ahead",
            "detail": detail,
        }
        for index, (word, at, detail) in enumerate(marks)
    ]


# -- notices -----------------------------------------------------------------------------------------------------------

# What was done about a hardware event by the table (telemetry.models.HealthRule, telemetry.health).
HARDWARE_ACTIONS = {
    "warn": "Nothing was done; have a look.",
    "cordon": "The host was cordoned, and work that can go leaves it.",
    "drain": "The host is being drained.",
    "quarantine_gpu": "The GPU was taken out; its work starts elsewhere.",
    "held_back": "Too much of the pool was taken out lately to do what the table says: decide on the host's page.",
}

# How tasks of an array end: the name of the number and its words.
ARRAY_ENDS = (("finished", "finished"), ("failed", "failed"), ("cancelled", "cancelled"))

NOTICES: dict[str, Callable[[_Facts], str]] = {
    "started": lambda f: f"{f.plain('', 'name')} started{f.plain(' on ', 'host')}.",
    "resumed": lambda f: (
        f"{f.plain('', 'name')} resumed{f.plain(' on ', 'host')}{f.plain(', attempt ', 'attempt')}"
        f"{': another home folder, so it does not find its checkpoint and begins anew' if f.get('other_homes') else ''}."
    ),
    "ended": lambda f: f"{f.plain('', 'name')} ended. {reason(str(f.get('outcome') or ''), f.numbers, f.viewer)}",
    "array_started": lambda f: (
        f"{f.plain('', 'name')} started: the first of its {f.plain('', 'tasks')} tasks runs{f.plain(' on ', 'host')}."
    ),
    "array_fails": lambda f: (
        f"{f.plain('', 'name')}: {f.plain('', 'failed')} of its {f.plain('', 'tasks')} tasks failed so far. {_last_task(f)}"
    ),
    "array_ended": lambda f: (
        f"{f.plain('', 'name')} ended. Of its {f.plain('', 'tasks')} tasks "
        + (_listed([f"{f.plain('', how)} {word}" for how, word in ARRAY_ENDS if f.get(how)]) or "none was left")
        + f". {_last_task(f) if f.get('failed') else ''}"
    ),
    "preemption_notice": lambda f: (
        f"{f.plain('', 'name')} has to make room. {reason(str(f.get('code') or ''), f.numbers, f.viewer)}"
    ),
    "expected_start_moved": lambda f: (
        f"{f.plain('', 'name')} is now expected to start{f.time(' at ', 'expected_start')}{f.time(', before that ', 'before')}."
    ),
    "reservation_soon": lambda f: f"Your reservation {f.plain('', 'name')} begins{f.time(' at ', 'start')}.",
    "reservation_released": lambda f: f"Your reservation {f.plain('', 'name')} was released: nothing ran in it.",
    "reservation_waits": lambda f: (
        f"Reservation {f.plain('', 'name')}: {reason(str(f.get('code') or ''), f.numbers, f.viewer)}"
    ),
    "idle_warning": lambda f: (
        f"{f.plain('', 'name')} is idle and will be stopped{f.time(' at ', 'stop_at')} unless you use it or keep it."
    ),
    "approval_wanted": lambda f: f"{f.plain('', 'author')} asks for {f.plain('', 'what')} for {f.plain('', 'team')}.",
    "approved": lambda f: f"Approved{f.plain(' by ', 'by')}: {f.plain('', 'what')}.{f.plain(' ', 'comment')}",
    "approved_changed": lambda f: (
        f"Approved with changes{f.plain(' by ', 'by')}: {f.plain('', 'what')}.{f.plain(' ', 'comment')}"
    ),
    "declined": lambda f: f"Declined{f.plain(' by ', 'by')}: {f.plain('', 'what')}.{f.plain(' ', 'comment')}",
    "host_trouble": lambda f: (
        f"{f.plain('', 'host')} counts as off{f.time(' since ', 'off_since')} (by {f.plain('', 'by')})."
        if f.get("off_since")
        else f"{f.plain('', 'host')}: {f.plain('', 'trouble')}."
    ),
    "hardware_event": lambda f: (
        f"{f.plain('', 'host')}{f.plain(', GPU ', 'gpu')}: {f.plain('', 'meaning')}"
        f"{f.plain(' (' if f.get('meaning') else '', 'event', after=')' if f.get('meaning') else '') or 'a hardware event'}"
        f"{f.plain(', ', 'detail') if f.get('detail') else ''}. "
        f"{HARDWARE_ACTIONS.get(str(f.get('action')), '')}"
    ),
    "diagnostic_failed": lambda f: (
        f"GPU {f.plain('', 'gpu')} of {f.plain('', 'host')} failed its diagnostic{f.plain(': ', 'detail') if f.get('detail') else ''}."
        + (
            " It is out until you return it."
            if f.get("out")
            else " It is still in service, since many of the pool failed lately: decide on the host's page."
        )
    ),
    "geometry_changed": lambda f: (
        f"GPU {f.plain('', 'gpu')} of {f.plain('', 'host')} is {f.get('geometry') or 'one whole GPU'} now, and in service."
    ),
    "geometry_failed": lambda f: (
        f"GPU {f.plain('', 'gpu')} of {f.plain('', 'host')} could not become {f.get('geometry') or 'one whole GPU'}"
        f"{f.plain(': ', 'detail') if f.get('detail') else ''}."
        + (" It is in service as it was." if f.get("in_service") else " It is not in service: decide on the host's page.")
    ),
    "gpu_is_back": lambda f: (
        f"GPU {f.plain('', 'gpu')} of {f.plain('', 'host')} passed its diagnostic and is well again. "
        "If the host is cordoned, it stays so until you return it."
    ),
    "stray_is_yours": lambda f: (
        f"Your process {f.plain('', 'process')} (pid {f.plain('', 'pid')}) uses GPU {f.plain('', 'gpu')} of {f.plain('', 'host')} "
        "outside the pool. End it, or ask for a GPU: others count on that one."
    ),
    "reservation_moves": lambda f: (
        f"Reservation {f.plain('', 'name')} leaves {f.plain('', 'host')}, which can't be used at present. It gets other GPUs as soon "
        "as there are any."
    ),
    "maintenance_announced": lambda f: (
        f"{f.plain('', 'host')} is away{f.time(' from ', 'start')}{f.time(' to ', 'end')}{f.plain(': ', 'reason')}. "
        + (
            f"{f.plain('', 'name')} is moved off it before that unless it has ended."
            if f.get("moves")
            else f"Reservation {f.plain('', 'name')} gets other GPUs for that time."
        )
    ),
    "maintenance_cancelled": lambda f: (
        f"The maintenance of {f.plain('', 'host')}{f.time(' from ', 'start')} is taken back: {f.plain('', 'name')} stays where it is."
    ),
    "has_to_move": lambda f: (
        f"{f.plain('', 'name')} leaves {f.plain('', 'host') or 'its host'}. "
        f"{reason(str(f.get('code') or ''), f.numbers, f.viewer)} "
        + ("It ends; files saved in its home stay." if f.get("ends") else "It is queued again with its place kept.")
    ),
    "budget_reached": lambda f: (
        f"{f.plain('', 'name')} {'is on its way to' if f.get('forecast') else 'has used'} {f.plain('', 'percent')} % of its budget."
    ),
}


def _last_task(f: _Facts) -> str:
    """The task of an array that failed last, and how."""
    return f"The last, {f.plain('', 'task')}: {reason(str(f.get('outcome') or ''), f.numbers, f.viewer)}"


def _listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def gpu_list(numbers: Sequence[int]) -> str:
    """``GPU 3``, ``GPUs 0, 1 and 2``."""
    if len(numbers) == 1:
        return f"GPU {numbers[0]}"
    return f"GPUs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def notice(kind: str, numbers: Numbers, viewer: policy.Viewer | None = None) -> str:
    """The sentence of a Notification."""
    sentence = NOTICES.get(kind)
    return sentence(_Facts(numbers, viewer)).strip() if sentence else kind.replace("_", " ").capitalize()


# What people did to a host that is no change of its states: verb of the audit record to words.
HOST_DEEDS: dict[str, Callable[[_Facts], str]] = {
    "add_host": lambda f: "Made known",
    "new_join_token": lambda f: "A join token was made; those not used before stopped working",
    "revoke_host": lambda f: "Its agent's credential was revoked",
    "attest_host_off": lambda f: "It counts as powered off",
    "set_maintenance": lambda f: f"Maintenance announced: {window(_parsed(f.get('start')), _parsed(f.get('end')))}",
    "cancel_maintenance": lambda f: f"Maintenance taken back: {window(_parsed(f.get('start')), _parsed(f.get('end')))}",
    "diagnose_gpu": lambda f: f"GPU {f.plain('', 'gpu')} is to be looked at",
    "diagnose_host": lambda f: f"To be looked at: {gpu_list(f.get('gpus') or [])}",
    "change_geometry": lambda f: f"GPU {f.plain('', 'gpu')} is to become {f.plain('', 'geometry')}",
    "withdraw_geometry": lambda f: f"GPU {f.plain('', 'gpu')} stays as it is: {f.plain('', 'geometry')} was taken back",
}


def host_deed(verb: str, numbers: Numbers) -> str:
    """What a person did to a host, without who and why."""
    words = HOST_DEEDS.get(verb)
    return words(_Facts(numbers, None)) if words else verb.replace("_", " ").capitalize()


def still_there(leaving: Sequence[tuple[str, datetime]], staying: Sequence[tuple[str, datetime]]) -> str:
    """What has not left a host that takes nothing new: (name, gone by then at the latest) of what was told to go, and of what
    runs to its own end. Each soonest first."""
    if not leaving and not staying:
        return "Nothing runs on it any more."
    said = []
    if leaving:
        said.append(f"Still leaving: {_named(leaving)}, by {moment(leaving[-1][1])} at the latest.")
    if staying:
        verb = "runs to its end" if len(staying) == 1 else "run to their ends"
        said.append(f"{_named(staying)} {verb}, by {moment(staying[-1][1])} at the latest.")
    return " ".join(said)


def _named(rows: Sequence[tuple[str, datetime]], most: int = 4) -> str:
    """Names with commas; of many the first few and how many more."""
    names = [name for name, _ in rows[:most]]
    if len(rows) > most:
        return f"{', '.join(names)} and {len(rows) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def guarantee_effect(
    *, team: str, pool: str, model: str, asked: float, most: float, capacity: float, others: float, own: float
) -> str:
    """What a team's guarantee of ``asked`` GPUs of a model would leave, or why it is too much. ``most`` is what it can have,
    ``others`` what other teams are guaranteed, ``own`` what it is guaranteed now; all in GPUs of the pool's ``capacity``."""
    name = _readable(model)
    if asked <= most:
        left, before = capacity - others - asked, capacity - others - own
        return f"{left:g} of {capacity:g} {name} stay without a guarantee (now {before:g})."
    return (
        f"{asked:g} × {name} is {asked - most:g} more than there is: {pool} has {capacity:g}, and other teams are guaranteed "
        f"{others:g} of them. {team} can be guaranteed up to {most:g}."
    )


def borrows(team: str, model: str, held: float, guaranteed: float) -> str:
    """What preemptible work of a team should know that holds more GPUs of a model than it is guaranteed."""
    return (
        f"{team} holds {held:g} × {_readable(model)}, {held - guaranteed:g} of them borrowed: it is guaranteed {guaranteed:g}. Whoever those "
        "are guaranteed to may call them back; preemptible work like this then gets a notice, makes room and waits again."
    )


def late_for_its_wish(wanted_by: datetime | None, done: datetime | None) -> str:
    """A warning when work is expected to be done later than it is wanted; empty otherwise, and where nothing is known."""
    if wanted_by is None or done is None or done <= wanted_by:
        return ""
    return f"It is wanted by {moment(wanted_by)} and expected to be done at {moment(done)}, {duration(done - wanted_by)} later."


def submission_what(kind: str, payload: Numbers) -> str:
    """What was submitted, as a noun: for lists, notices and the approvals page."""
    if kind == "quota_change":
        limit = payload.get("borrow_limit_gpus")
        lend = "any number" if limit is None else f"{limit}"
        model = _readable(str(payload.get("model")))
        worth = ""
        if payload.get("gpu_hours") is not None:
            then = "then only borrowing" if payload.get("when_used_up") != "refuse" else "then nothing new"
            worth = f", worth {payload['gpu_hours']} GPU-hours a {payload.get('period')}, {then}"
        return f"a guarantee of {payload.get('guaranteed_gpus')} × {model}, borrowing {lend} more{worth}"
    if kind in ("reservation", "series", "window_change"):
        models = " or ".join(map(_readable, payload.get("models") or [])) or "any GPU"
        asked = f"{payload['profile']} of {models}" if payload.get("profile") else models
        when = window(_parsed(payload.get("start")), _parsed(payload.get("end")))
        what = f"{payload.get('units')} × {asked}, {when}"
        if kind == "series":
            return f"{what}, {weekdays(payload.get('weekdays') or [])} until {payload.get('until')} ({payload.get('occurrences')} times)"
        if kind == "window_change":
            old = window(_parsed(payload.get("start_now")), _parsed(payload.get("end_now")))
            return f"another window for {payload.get('name')}: {what} instead of {old}"
        return what
    return f"membership as {payload.get('role')}"


def weekdays(days: Sequence[str]) -> str:
    """``every weekday``, ``every day``, ``every Mon, Wed``; of ``mon`` to ``sun``."""
    if len(days) == 7:
        return "every day"
    if list(days) == ["mon", "tue", "wed", "thu", "fri"]:
        return "every weekday"
    return f"every {', '.join(day.capitalize() for day in days)}"


def _readable(model: str) -> str:
    return model.replace("-", " ")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _parsed(value: Any) -> datetime | None:
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return value if isinstance(value, datetime) else None
