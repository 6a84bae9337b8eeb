"""Build the sentences of notifications: one sentence for each kind of notification."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

from portal import policy
from portal.wording.alert_texts import alert_evidence, alert_label
from portal.wording.formatting import Numbers, date_and_time, joined_with_and, with_count
from portal.wording.money_texts import refund_sentence
from portal.wording.reason_numbers import ReasonNumbers
from portal.wording.reason_texts import reason_sentence
from portal.wording.request_texts import submission_summary
from portal.wording.run_report_texts import ADVICE_HEADLINES, advice_evidence, advice_headline
from telemetry.core.request_advice import Advice

# Actions of health rules (see telemetry.health.rules), each with its sentence.
HARDWARE_ACTIONS = {
    "warn": "No action was taken: check the host.",
    "cordon": "The host was cordoned, and work that can move leaves it.",
    "drain": "The host is being drained.",
    "quarantine_gpu": "The GPU is quarantined; its work starts elsewhere.",
    "held_back": (
        "No action was taken, because much of the pool was taken out of service recently: "
        "decide on the host's page."
    ),
}

OTHER_HOME_FOLDER = ": another home folder, so it does not find its checkpoint and starts from the beginning"

# Outcomes of array tasks: (name of the count in the notice's numbers, text).
ARRAY_ENDS = (("finished", "finished"), ("failed", "failed"), ("cancelled", "cancelled"))

NOTICE_SENTENCES: dict[str, Callable[[ReasonNumbers], str]] = {
    "started": lambda f: f"{f.plain('', 'name')} started{f.plain(' on ', 'host')}.",
    "resumed": lambda f: (
        f"{f.plain('', 'name')} resumed{f.plain(' on ', 'host')}{f.plain(', attempt ', 'attempt')}"
        f"{OTHER_HOME_FOLDER if f.get('other_homes') else ''}."
    ),
    "ended": lambda f: (
        f"{f.plain('', 'name')} ended. {reason_sentence(str(f.get('outcome') or ''), f.numbers, f.viewer)}"
    ),
    "advice": lambda f: _advice_sentence(f),
    "array_started": lambda f: (
        f"{f.plain('', 'name')} started: the first of its {f.plain('', 'tasks')} tasks runs"
        f"{f.plain(' on ', 'host')}."
    ),
    "array_fails": lambda f: (
        f"{f.plain('', 'name')}: {f.plain('', 'failed')} of its {f.plain('', 'tasks')} tasks failed so far. "
        f"{_last_failed_task(f)}"
    ),
    "array_ended": lambda f: (
        f"{f.plain('', 'name')} ended. Of its {f.plain('', 'tasks')} tasks "
        + (
            joined_with_and([f"{f.plain('', how)} {word}" for how, word in ARRAY_ENDS if f.get(how)])
            or "none has a known outcome"
        )
        + f". {_last_failed_task(f) if f.get('failed') else ''}"
    ),
    "preemption_notice": lambda f: (
        f"{f.plain('', 'name')} is being preempted. "
        f"{reason_sentence(str(f.get('code') or ''), f.numbers, f.viewer)}{_refund_sentence(f)}"
    ),
    "expected_start_moved": lambda f: (
        f"{f.plain('', 'name')} is now expected to start{f.time(' at ', 'expected_start')}"
        f"{f.time(' instead of ', 'before')}."
    ),
    "reservation_soon": lambda f: f"Your reservation {f.plain('', 'name')} begins{f.time(' at ', 'start')}.",
    "reservation_released": lambda f: (
        f"Your reservation {f.plain('', 'name')} was released: nothing ran in it."
    ),
    "reservation_waits": lambda f: (
        f"Reservation {f.plain('', 'name')}: {reason_sentence(str(f.get('code') or ''), f.numbers, f.viewer)}"
    ),
    "idle_warning": lambda f: (
        f"{f.plain('', 'name')} is idle and will be stopped{f.time(' at ', 'stop_at')} "
        "unless you use it or keep it."
    ),
    "approval_wanted": lambda f: (
        f"{f.plain('', 'author')} asks for {_request_summary(f)} for {f.plain('', 'team')}."
    ),
    "approved": lambda f: f"Approved{f.plain(' by ', 'by')}: {_request_summary(f)}.{f.plain(' ', 'comment')}",
    "approved_changed": lambda f: (
        f"Approved with changes{f.plain(' by ', 'by')}: {_request_summary(f)}.{f.plain(' ', 'comment')}"
    ),
    "declined": lambda f: f"Declined{f.plain(' by ', 'by')}: {_request_summary(f)}.{f.plain(' ', 'comment')}",
    "submission_expired": lambda f: (
        f"Expired: {f.plain('', 'author')} asked for {_request_summary(f)} for {f.plain('', 'team')}, "
        "and nobody decided it before its start. It can be requested for another window."
    ),
    "host_trouble": lambda f: (
        f"{f.plain('', 'host')} counts as powered off{f.time(' since ', 'off_since')} "
        f"(confirmed by {f.plain('', 'by')}{f.plain(': ', 'why') if f.get('why') else ''})."
        if f.get("off_since")
        else f"{f.plain('', 'host')}: {f.plain('', 'trouble')}."
    ),
    "disk_is_full": lambda f: (
        f"{f.plain('', 'host')} has started nothing new{f.time(' since ', 'since')}: its disk is full. "
        "Check which files fill it. Put homes and checkpoints on a separate disk, or set a quota."
    ),
    "hardware_event": lambda f: (
        f"{f.plain('', 'host')}{f.plain(', GPU ', 'gpu')}: {f.plain('', 'meaning')}"
        f"{_event_text(f)}"
        f"{f.plain(', ', 'detail') if f.get('detail') else ''}. "
        f"{HARDWARE_ACTIONS.get(str(f.get('action')), '')}"
    ),
    "strays_found": lambda f: (
        f"{f.plain('', 'host')}, {'; '.join(f.get('told') or ('a process that belongs to no workload',))}"
        f"{f.plain('; and ', 'more', after=' more') if f.get('more') else ''}. "
        + (
            "The pool's policy ends such a process if it stays. The host's page shows the result."
            if f.get("ends") and f.get("action") == "warn"
            else HARDWARE_ACTIONS.get(str(f.get("action")), "")
        )
    ),
    "diagnostic_failed": lambda f: (
        f"GPU {f.plain('', 'gpu')} of {f.plain('', 'host')} failed its diagnostic"
        f"{f.plain(': ', 'detail') if f.get('detail') else ''}."
        + (
            " It is out of service until you return it."
            if f.get("out")
            else " It is still in service, because many GPUs of the pool failed recently: "
            "decide on the host's page."
        )
    ),
    "geometry_changed": lambda f: (
        f"GPU {f.plain('', 'gpu')} of {f.plain('', 'host')} is {f.get('geometry') or 'one whole GPU'} now, "
        "and in service."
    ),
    "geometry_failed": lambda f: (
        f"GPU {f.plain('', 'gpu')} of {f.plain('', 'host')} could not become "
        f"{f.get('geometry') or 'one whole GPU'}{f.plain(': ', 'detail') if f.get('detail') else ''}."
        + (
            " It is in service with its old geometry."
            if f.get("in_service")
            else " It is not in service: decide on the host's page."
        )
    ),
    "gpu_is_back": lambda f: (
        f"GPU {f.plain('', 'gpu')} of {f.plain('', 'host')} passed its diagnostic and is well again. "
        "If the host is cordoned, return it to service yourself."
    ),
    "stray_is_yours": lambda f: (
        f"Your process {f.plain('', 'process')} (pid {f.plain('', 'pid')}) uses GPU {f.plain('', 'gpu')} of "
        f"{f.plain('', 'host')} outside the pool. End it, or request a GPU: other work needs this GPU."
    ),
    "reservation_moves": lambda f: (
        f"Reservation {f.plain('', 'name')} leaves {f.plain('', 'host')}, which can't be used at present. "
        "It gets other GPUs as soon as there are any."
    ),
    "reservation_at_risk": lambda f: (
        f"Reservation {f.plain('', 'name')} of {f.plain('', 'owner')} ({f.plain('', 'team')}) can't be "
        f"served at present. {reason_sentence('reservation_at_risk', f.numbers, f.viewer)}"
    ),
    "reservation_stuck": lambda f: (
        f"{f.plain('', 'units')} of the {f.plain('', 'of')} GPUs of reservation {f.plain('', 'name')} can't "
        f"be used at present ({f.plain('', 'host')}). It gets other GPUs once nothing runs inside it: end "
        f"{'all workloads' if f.get('workloads') != 1 else 'the one workload'} inside it, or continue with "
        "its usable GPUs."
    ),
    "maintenance_announced": lambda f: (
        f"{f.plain('', 'host')} is in maintenance{f.time(' from ', 'start')}{f.time(' to ', 'end')}"
        f"{f.plain(': ', 'reason')}. "
        + (
            f"{f.plain('', 'name')} is moved off the host before that, unless it has ended."
            if f.get("moves")
            else f"Reservation {f.plain('', 'name')} gets other GPUs for that time."
        )
    ),
    "maintenance_cancelled": lambda f: (
        f"The maintenance of {f.plain('', 'host')}{f.time(' from ', 'start')} is cancelled: "
        f"{f.plain('', 'name')} stays there."
    ),
    "team_removed": lambda f: (
        f"The team {f.plain('', 'name')} was removed{f.plain(' by ', 'by')}"
        f"{f.plain(': ', 'why') if f.get('why') else ''}. Its memberships, its quotas and its open requests "
        "ended."
    ),
    "database_maintenance": lambda f: (
        f"Maintenance of the database until {date_and_time(f.get('until'))}: {f.plain('', 'why')}. "
        "Nothing new starts, and pages may not answer. Running work continues."
    ),
    "leaver_work": lambda f: (
        f"The account of {f.plain('', 'name')} is closed. {int(f.get('workloads') or 0)} of its workloads in "
        f"{f.plain('', 'team')} {_leaver_work(f)}: {', '.join(map(str, f.get('names') or []))}."
    ),
    "pool_removed": lambda f: (
        f"The pool {f.plain('', 'name')} was removed{f.plain(' by ', 'by')}"
        f"{f.plain(': ', 'why') if f.get('why') else ''}. Quotas in it and requests for it ended."
    ),
    "has_to_move": lambda f: (
        f"{f.plain('', 'name')} leaves {f.plain('', 'host') or 'its host'}. "
        f"{reason_sentence(str(f.get('code') or ''), f.numbers, f.viewer)} "
        + (
            "It ends; files saved in its home stay."
            if f.get("ends")
            else "It is queued again with its place kept."
        )
        + _refund_sentence(f)
    ),
    "month_waits": lambda f: (
        f"{date.fromisoformat(str(f.get('month'))):%B %Y} is over and {_wait_for_close(f)} to be closed."
    ),
    "statements_made": lambda f: (
        f"{date.fromisoformat(str(f.get('month'))):%B %Y} is closed. "
        f"{_new_statements(int(f.get('count') or 1), f.plain('', 'number'))}"
    ),
    "spend_question": lambda f: f"{f.plain('', 'author')} asks about a charge: {f.plain('', 'question')}",
    "token_ends": lambda f: (
        f"The API token {f.plain('', 'name')}{f.plain(' of ', 'account')} ends on "
        f"{date_and_time(f.get('expires_at'))}. Make a new one before, under API tokens."
    ),
    "channel_fails": lambda f: (
        f"Messages to your notice channel {f.plain('', 'name')} have failed{f.time(' since ', 'since')}: "
        f"{f.plain('', 'failure')}. They are tried again."
    ),
    "channel_test": lambda f: (
        f"This is a test of the notice channel {f.plain('', 'name')}, which {f.plain('', 'by')} asked for."
    ),
    "reservation_ends": lambda f: (
        f"Your reservation {f.plain('', 'name')} ends{f.time(' at ', 'end')}."
        + (
            f" {with_count(int(f.get('workloads') or 0), 'workload')} still "
            f"{'runs' if f.get('workloads') == 1 else 'run'} in it."
            if f.get("workloads")
            else ""
        )
    ),
    "approval_waits": lambda f: (
        f"{f.plain('', 'author')} has waited{f.time(' since ', 'since')} for a decision about "
        f"{_request_summary(f)} for {f.plain('', 'team')}."
    ),
    "adjustment_proposed": lambda f: (
        f"{f.plain('', 'author')} proposes {f.plain('', 'number')}, {f.plain('', 'amount')} for "
        f"{f.plain('', 'cost_centre')}. Approve or reject it on the page Credits and adjustments."
    ),
    "adjustment_decided": lambda f: (
        f"{f.plain('', 'number')}, {f.plain('', 'amount')} for {f.plain('', 'cost_centre')}, is "
        f"{f.plain('', 'state')}{f.plain(' by ', 'by')}."
    ),
    "alerts_began": lambda f: (
        f"{alert_label(str(f.get('alert')))} in {f.plain('', 'pool')}: {f.plain('', 'subject')}. "
        f"{_alert_evidence(f)}"
        + (f" {with_count(int(f.get('more') or 0), 'more alert')} of this kind." if f.get("more") else "")
    ),
    "alert_on_work": lambda f: (
        f"{alert_label(str(f.get('alert')))}: {f.plain('', 'name')}. {_alert_evidence(f)}"
    ),
    "unused_work_stops": lambda f: (
        f"{f.plain('', 'name')} does not use its GPUs. It is asked to save and to end at "
        f"{date_and_time(f.get('stop_at'))} unless it uses them before.{_how_to_postpone(f)}"
    ),
    "budget_reached": lambda f: (
        f"{f.plain('', 'name')} {'is forecast to use' if f.get('forecast') else 'has used'} "
        f"{f.plain('', 'percent')} % of its "
        f"budget{' of GPU-hours' if f.get('measure') == 'gpu_hours' else ''}"
        f"{f.plain(' for the ', 'period') if f.get('period') else ''}."
        + (
            " Running work gets its notice, can write a checkpoint, and then ends."
            if f.get("stops_running")
            else ""
        )
    ),
}


def _request_summary(f: ReasonNumbers) -> str:
    """Return the text of a request in the reader's zone. Notices of older versions contain the text."""
    request = f.get("request")
    if not isinstance(request, dict):
        return f.plain("", "what")
    return submission_summary(request["kind"], request["payload"])


def _how_to_postpone(f: ReasonNumbers) -> str:
    """Return how the owner of an unused job may postpone its stop; "" if the pool does not allow it."""
    if not f.get("left"):
        return ""
    return (
        f" You may postpone this {with_count(int(f.get('left') or 0), 'more time')}, by at most "
        f"{f.plain('', 'minutes')} minutes: on its page, or with gpupool keep {f.plain('', 'job')} "
        f"--for {f.plain('', 'minutes')}m."
    )


def _alert_evidence(f: ReasonNumbers) -> str:
    return alert_evidence(str(f.get("alert")), float(f.get("value") or 0), f.numbers)


def _refund_sentence(f: ReasonNumbers) -> str:
    """Return how much of the stopped work is not charged; "" for a notebook."""
    return f" {refund_sentence(f.get('forgiven_minutes'))}" if "forgiven_minutes" in f.numbers else ""


def _new_statements(count: int, first: str) -> str:
    return f"Your statement {first} is made." if count == 1 else f"{count} statements of your teams are made."


def _leaver_work(f: ReasonNumbers) -> str:
    """Return what happens to the work of a closed account."""
    if f.get("policy") != "hand_over":
        return "are stopped"
    lead = f.plain("", "lead")
    return f"continue, and {lead} is in charge of them" if lead else "continue, and the team has no lead"


def _wait_for_close(f: ReasonNumbers) -> str:
    """Return ``has waited for 2 weeks``, or ``waits`` in the first week."""
    weeks = int(f.get("weeks") or 0)
    return f"has waited for {with_count(weeks, 'week')}" if weeks else "waits"


def _event_text(f: ReasonNumbers) -> str:
    """Return the code of a hardware event. The code is in brackets if the event's meaning precedes it."""
    before, after = (" (", ")") if f.get("meaning") else ("", "")
    return f.plain(before, "event", after=after) or "a hardware event"


def _last_failed_task(f: ReasonNumbers) -> str:
    """Return the last failed task of an array and its outcome."""
    return (
        f"The last, {f.plain('', 'task')}: "
        f"{reason_sentence(str(f.get('outcome') or ''), f.numbers, f.viewer)}"
    )


def _advice_sentence(f: ReasonNumbers) -> str:
    """Return the first advice of the report of a run with its evidence."""
    given = f.get("advice") or {}
    advice = Advice(given.get("code", ""), given.get("numbers", {}))
    if advice.code not in ADVICE_HEADLINES:
        return f"The report of {f.plain('', 'name')} has advice."
    more = int(f.get("more") or 0)
    rest = f" Its report has {with_count(more, 'more suggestion')}." if more else ""
    return f"Next time for {f.plain('', 'name')}: {advice_headline(advice)}. {advice_evidence(advice)}{rest}"


def notice_sentence(kind: str, numbers: Numbers, viewer: policy.Viewer | None = None) -> str:
    """Return the sentence of a notification of this kind with these numbers."""
    sentence = NOTICE_SENTENCES.get(kind)
    return (
        sentence(ReasonNumbers(numbers, viewer)).strip() if sentence else kind.replace("_", " ").capitalize()
    )
