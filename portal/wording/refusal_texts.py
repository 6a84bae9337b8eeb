"""Build sentences for requests that the current state does not allow.

The sentences are looked up by the code of ``OperationRejected``. The engine's reason codes have their
sentences in ``reason_texts``. An entry is a text with the names of numbers in braces, or a function if the
form of the sentence depends on the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from portal.errors import ServiceError
from portal.wording.formatting import Numbers, gpu_list, local_time_text, parsed_time, window
from portal.wording.reason_texts import REASONS, reason_sentence
from portal.wording.request_texts import expired_submission_sentence, guarantee_effect
from scheduler.core.promises.reservation_windows import ReservationWindow
from scheduler.services import OperationRejected

Sentence = str | Callable[[Mapping[str, Any]], str]

# Codes of refused MIG geometries, each with its sentence.
GEOMETRY_MISFITS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "unknown": lambda n: (
        f"{n['profile']} is not a MIG profile of this GPU; allowed: {', '.join(n['offered'])}."
    ),
    "most": lambda n: f"{n['profile']} is requested {n['asked']} times; at most {n['allowed']} fit.",
    "slices": lambda n: f"together they need {n['asked']} compute slices, and the GPU has {n['allowed']}.",
    "places": lambda n: "the profiles do not fit together: they need too much memory.",
}

# Checks of a close, each with a sentence about the people who must act before the check passes.
WHO_MUST_ACT = {
    "every charged line has a cost centre": (
        " The lead of the team says which cost centre pays, and finance enters it on the page Cost centres."
    ),
    "every credit and adjustment is approved, rejected or withdrawn": (
        " A person of finance other than the author approves or rejects each"
        " on the page Credits and adjustments."
    ),
}

CREDITED_SUBJECTS = {
    "charge": "the charge line",
    "line": "the statement line",
    "statement": "the charge of the cost centre in that month",
}

REFUSALS: dict[str, Sentence] = {
    # names
    "host_name_is_taken": "name is {name}; a host of that name exists already.",
    "pool_name_is_taken": "name is {name}; a pool of that name exists already.",
    "pool_name_was_used": "name is {name}; a removed pool had that name, and its charges keep it.",
    "team_name_is_taken": "name is {name}; a team of that name exists already.",
    "team_name_was_used": "name is {name}; a removed team had that name, and its charges keep it.",
    "project_name_is_taken": "name is {name}; {team} has a project of that name already.",
    "username_is_taken": "username is {name}; an account of that name exists already.",
    # Unix identities
    "uid_is_taken": "uid is {uid}, which is the user number of {holder}; two people cannot have one number.",
    "unix_name_is_taken": "name is {name}, which is the Unix name of {holder}.",
    "no_unix_identity": (
        "Work in {pool} runs as the Unix user of its owner, and {name} has no Unix identity. An operator "
        "sets it on the page of the account."
    ),
    "pool_has_work_as_owners": (
        "{count} notebooks and jobs of {pool} run, or wait to run, as the Unix users of their owners. Wait "
        "until they have ended, or cancel them."
    ),
    "unix_identity_is_missing": "{name} has no Unix identity.",
    # the database
    "database_maintenance_lasts": lambda n: (
        f"A maintenance of the database lasts until {local_time_text(datetime.fromisoformat(n['until']))}: "
        f"{n['why']}. End it first."
    ),
    "no_database_maintenance": "No maintenance of the database is in progress; there is nothing to end.",
    # workloads
    "workload_has_ended": "{name} has already ended; there is nothing to cancel.",
    "array_has_ended": "Every task of {name} has ended or is stopping; there is nothing to cancel.",
    "runtime_is_longest": "{name} already has the longest runtime of {pool}, {seconds:,} seconds.",
    "ends_before_extension": "{name} is ending or has ended; it can't be extended. Launch it again instead.",
    "ends_before_keep": "{name} is ending or has ended; it can't be kept.",
    "no_stop_is_planned": "No stop of {name} is planned; a job is stopped only if it is unused.",
    "stop_postponed_too_often": lambda n: (
        f"The stop of {n['name']} can't be postponed any more: {n['pool_name']} allows it "
        f"{n['times']} times. It goes on if it uses its GPUs."
        if n["times"]
        else f"The stop of {n['name']} can't be postponed: {n['pool_name']} does not allow it. "
        "It goes on if it uses its GPUs."
    ),
    "workspace_is_not_running": "{name} is {state}; it can be opened while it runs.",
    "job_serves_nothing": ("{name} does not listen on $GPUPOOL_DOOR; only a job that does can be opened."),
    # reservations
    "reservation_cannot_change": "{name} is {state}; it can't be changed.",
    "reservation_is_over": "{name} is already {state}; there is nothing to cancel.",
    "reservation_cannot_be_shortened": "{name} is {state}; it can't be shortened.",
    "reservation_has_started": lambda n: (
        f"{n['name']} has started meanwhile, at {_local_time(n['start'])}: only its end can change."
    ),
    "reservation_window_moved": lambda n: (
        f"{n['name']} was changed meanwhile: {_local_time(n['start'])} to {_local_time(n['end'])}. "
        "Check it and request the change again."
    ),
    "reservation_was_not_confirmed": "{name} was not confirmed.",
    "series_is_over": "Every occurrence of {name} is over or cancelled; there is nothing to cancel.",
    # approvals
    "submission_is_decided": lambda n: (
        f"This is already {n['state']}{', by ' + n['decided_by'] if n['decided_by'] else ''}."
    ),
    "submission_has_expired": lambda n: expired_submission_sentence(datetime.fromisoformat(n["start"])),
    "window_change_waits": "A change of {name} already waits for approval; withdraw it first.",
    "quota_is_unchanged": (
        "{team} has this quota of {model} in {pool} already; allowed: at least one other value."
    ),
    "quota_change_waits": (
        "A quota change for {team}, {model} in {pool} already waits for approval; withdraw it first."
    ),
    "budget_request_waits": (
        "A request for this budget of {owner} already waits for approval; withdraw it first."
    ),
    "guarantee_is_too_large": lambda n: guarantee_effect(
        team=n["team"],
        pool=n["pool"],
        model=n["model"],
        asked=n["team_after_gpus"],
        most=n["most_gpus"],
        capacity=n["capacity_gpus"],
        others=n["others_gpus"],
        own=n["team_before_gpus"],
    ),
    "membership_exists": "You are already in {team}.",
    "membership_request_waits": "You already asked to join {team}.",
    # hosts and GPUs
    "host_has_this_state": "{name} is {state} already.",
    "host_cannot_become": "{name} is {state}; it can't become {wanted}.",
    "capacity_study_runs": "The same study of {pool} has not ended yet.",
    "host_has_no_dcgm_target": "{name} has no dcgm-exporter that is read.",
    "host_is_not_off": (
        "The agent of {name} is connected, or has never been: the host is not off. Drain it instead."
    ),
    "windows_overlap": lambda n: (
        f"{n['host']} is in maintenance already {window(parsed_time(n['start']), parsed_time(n['end']))} "
        f"({n['reason']}, window {n['window']}). Choose another time, or cancel that window first."
    ),
    "maintenance_is_cancelled": "The window is cancelled already.",
    "host_does_not_answer": "{host} does not answer: its agent is needed for this.",
    "host_has_no_gpus": "{host} has no GPUs.",
    "gpu_is_not_reported": "GPU {gpu} is not reported by {host} any more.",
    "gpu_is_held": "GPU {gpu} of {host} is held by a workload; drain the host or wait until it is free.",
    "gpu_is_not_well": "GPU {gpu} of {host} is {repair_state}: return it to service first.",
    "gpu_has_this_state": "GPU {gpu} of {host} is {state} already.",
    "gpu_is_not_missing": "GPU {gpu} of {host} is still held, or is reported again.",
    "diagnostic_is_open": "GPU {gpu} of {host} is being diagnosed: wait until that is over.",
    "geometry_is_changing": "The geometry of GPU {gpu} of {host} is being changed: wait until that is over.",
    "geometry_change_is_open": (
        "The geometry of GPU {gpu} of {host} is being changed; withdraw the change instead."
    ),
    "geometry_is_not_changing": "The geometry of GPU {gpu} of {host} is not being changed.",
    "geometry_is_with_its_host": (
        "{host} is changing GPU {gpu} now; the change can't be withdrawn. Wait, then change it again."
    ),
    "geometry_is_the_same": lambda n: (
        f"GPU {n['gpu']} of {n['host']} is {n['geometry'] or 'one whole GPU'} already."
    ),
    "geometry_does_not_fit": lambda n: (
        f"GPU {n['gpu']} of {n['host']} can't be split like this: {GEOMETRY_MISFITS[n['why']](n)}"
    ),
    "gpu_has_no_mig": (
        "GPU {gpu} of {host} ({model}) can't be split: it has no MIG, or its agent is too old to report it."
    ),
    "pool_is_static": ("{pool} is a static pool: the geometry of its GPUs can't be changed."),
    "alert_rule_is_default": "The rule {kind} of the pool has its default already.",
    "alert_state": "The alert is {state}, so this does not change it.",
    "health_rule_exists": "code is {rule}; it has a rule already: change that one.",
    "health_rule_has_no_default": (
        "{rule} was added by an operator and has no default: change it, or remove it."
    ),
    "health_rule_is_default": "{rule} is at its default already.",
    "health_rule_is_built_in": (
        "{rule} is built in and can't be removed: to ignore its events, change its action to note."
    ),
    # removals and moves
    "host_is_removed": "{host} is removed already.",
    "host_has_work": lambda n: (
        f"{n['host']} runs work: {_named(n, 'work')}. Drain it and wait until nothing runs on it."
    ),
    "host_is_in_pool": "{host} is in the pool {pool} already.",
    "host_has_reserved_units": lambda n: (
        f"GPUs of {n['host']} are reserved: {_named(n, 'reservations')}. "
        "Cordon it and wait until the reservations have moved."
    ),
    "host_is_in_repair": lambda n: (
        f"{n['host']} diagnoses or changes {gpu_list(n['gpus'])}: wait until that is over."
    ),
    "host_is_reserved": lambda n: (
        f"Without {n['host']}, its pool could not serve upcoming reservations: {_named(n, 'reservations')}."
    ),
    "pool_has_hosts": lambda n: (
        f"{n['pool']} has hosts: {_named(n, 'hosts')}. Remove them or move them to another pool first."
    ),
    "pool_has_work": lambda n: (
        f"{n['pool']} has work that waits or runs: {_named(n, 'work')}. Cancel it or wait for its end."
    ),
    "pool_has_reservations": lambda n: (
        f"{n['pool']} has reservations: {_named(n, 'reservations')}. Cancel them or wait for their end."
    ),
    "pool_is_removed": "{pool} is removed already.",
    "team_has_pools": lambda n: f"{n['team']} owns pools: {_named(n, 'pools')}. Remove them first.",
    "team_has_work": lambda n: (
        f"{n['team']} has work that waits or runs: {_named(n, 'work')}. Cancel it or wait for its end."
    ),
    "team_has_reservations": lambda n: (
        f"{n['team']} has reservations: {_named(n, 'reservations')}. Cancel them or wait for their end."
    ),
    "team_is_removed": "{team} is removed already.",
    "pool_or_team_is_removed": "The pool {pool} or the team {team} was removed.",
    # money
    "month_is_not_over": "{month} is not over; only a month that is over can be closed.",
    "billing_zone_is_fixed": "The time zone of {month} and later months was just set; look at it again.",
    "close_not_proposed": (
        "{month} can't be closed: nobody proposed it in the last {days} days. Two people close a month:"
        " one proposes it, another closes it."
    ),
    "close_needs_another_person": "{month} can't be closed by you, because you proposed it.",
    "close_is_one_step": "{month} can't be proposed: one person closes a month here (settings of billing).",
    "month_changed_since_proposal": (
        "{month} can't be closed: its lines have changed since the proposal. It was {proposed} and is now"
        " {charged}. Propose it again."
    ),
    "month_is_closed": "{month} is closed already.",
    "spend_explains_itself": "{subject} needs no reason: its amount explains itself.",
    "spend_has_nobody_to_ask": "{subject} belongs to no active person, and its team has no other lead.",
    "spend_is_not_unusual": "{subject} needs no reason any more: the last search found nothing unusual.",
    "month_has_no_charge": "{month} has no charge yet, so its close can't be rehearsed.",
    "month_check_failed": lambda n: (
        f"{n['month']} can't be closed: this check fails: {n['check']} ({_figures_text(n['figures'])})."
        f"{WHO_MUST_ACT.get(n['check'], '')}"
    ),
    "month_is_unmapped": lambda n: (
        f"{n['month']} can't be closed: charges without a cost centre: {_payers_text(n)}"
    ),
    "statement_key_unusable": "{month} can't be closed: {setting} can't sign it: {problem}.",
    "month_samples_missing": lambda n: (
        f"{n['month']} can't be closed yet: these hosts still owe samples: {_named(n, 'hosts')}."
        " Wait for them, or say why the month is closed without them."
    ),
    "idle_payer_is_fixed": lambda n: (
        f"{date.fromisoformat(n['month']):%B %Y} is closed; the payer of its idle time can't be changed."
    ),
    "adjustment_month_is_closed": "month is {month}, which is closed; allowed: from {first_open} on.",
    "adjustment_is_decided": "{number} is {state} already; {decided_by} decided it.",
    "adjustment_is_withdrawn": lambda n: (
        f"{n['number']} can't be withdrawn, because it is a withdrawal itself."
        if n["by"] == n["number"]
        else f"{n['number']} can't be withdrawn again: {n['by']} withdraws it."
    ),
    "adjustment_needs_another_person": (
        "{number} can't be approved by you, because you proposed it: another person of finance decides."
    ),
    "credit_above_charge": lambda n: (
        f"amount is {n['amount']} {n['currency']}; allowed: a negative amount, not below {n['least']}: "
        f"{CREDITED_SUBJECTS[n['subject']]} is {n['charged']}, and {n['credited']} is credited already."
    ),
    "credit_in_other_currency": (
        "month is {month}, which is in {wanted}; allowed: a month in {currency}, the currency of the charges."
    ),
    "adjustment_in_other_mode": (
        "month is {month}, in which {team} has {mode}; allowed: a month in which it has {wanted}, as in the "
        "month that the amount refers to, or an adjustment without a team."
    ),
    "billing_mode_changes_credit": (
        "first_month is {month}; {number} gives back charges of an earlier month, in which {team} has "
        "{wanted}; allowed: from {later} on, or after the withdrawal of {number} is approved."
    ),
    "credited_line_may_change": (
        "line is a share of the idle time of {month}. Each charging run divides this time again until the "
        "month is closed; allowed: a line of use, or such a line of a closed month."
    ),
    "cost_centre_exists": "code is {code}; the directory has a cost centre with this code already.",
    "cost_centre_pays": lambda n: (
        f"{n['code']} can't be retired from that time on: it still pays for {_named(n, 'names')}."
    ),
    "split_is_in_force": "shares: {split} pays for {subject} at that time already.",
    "refund_limit_exists": "valid_from is {valid_from}; {pool} has a refund limit from that time already.",
    "price_exists": "valid_from is {valid_from}; {model} has a price from that time already.",
    "price_factor_exists": "valid_from is {valid_from}; {subject} has a factor from that time already.",
    # people
    "last_operator": "{name} is the last operator; make somebody else one first.",
    "identity_provider_exists": "slug is {slug}; a provider with that slug exists already.",
    "no_operator_could_sign_in": (
        "Then no operator could sign in: passwords would be off, and no operator is connected to a provider "
        "that is on. An operator first connects an identity under Preferences, Ways to sign in."
    ),
    "last_identity": (
        "{name} could not sign in any more; first connect another identity, or ask for a password."
    ),
    "accounts_changed_meanwhile": (
        "Somebody else created one of these accounts at the same time. Show again what the import does."
    ),
    "accounts_exist": "This portal has accounts already; sign in instead.",
    "person_is_not_a_member": "{name} is not in {team}.",
    "service_account_has_one_team": (
        "{name} is a service account of {team}: it is a member of this team only, without another role."
    ),
    "service_account_has_no_password": (
        "{name} is a service account: it has no password and no e-mail address."
    ),
    "too_many_channels": "There are {limit} notice channels already, as many as one owner may have.",
    "channel_is_gone": "The notice channel {name} was removed meanwhile.",
    "channel_is_unreadable": (
        "No key of this installation fits the address of {name}. Remove the channel and create a new one."
    ),
    "message_waits": "This message still waits to be sent; it is not sent twice.",
    "token_is_revoked": "The token {name} is revoked already.",
    "request_in_progress": "A request with this Idempotency-Key is in progress; repeat it in a few seconds.",
    "answer_is_unreadable": (
        "The request with this Idempotency-Key was carried out, but the secret key of the server has changed "
        "since, so its answer is lost. Look for the result in the list."
    ),
    "organisation_is_missing": "There is no organisation in this database: restore the backup first.",
}

# Operations, each with the beginning of its sentence. The reason follows the beginning.
REJECTED_OPERATIONS: dict[str, Callable[[Mapping[str, Any], str], str]] = {
    "extend_workload": lambda n, code: (
        f"{n['name']} "
        + (
            "was extended just now, so this is too long. "
            if code == "over_runtime_cap"
            else "can't be extended so far. "
        )
    ),
    "confirm_series": lambda n, code: (
        f"Occurrence {n['occurrence']} of {n['occurrences']}, "
        f"{window(parsed_time(n['occurrence_start']), parsed_time(n['occurrence_end']))}, does not fit. "
    ),
}


def refusal_sentence(refusal: ServiceError | OperationRejected) -> str:
    """Return the sentence that a page or an API response shows for a refused request."""
    if isinstance(refusal, ServiceError):
        return refusal.message
    return rejection_sentence(refusal.code, refusal.numbers, refusal.first_windows, refusal.operation)


def rejection_sentence(
    code: str, numbers: Numbers, first_windows: Sequence[ReservationWindow] = (), operation: str = ""
) -> str:
    """Return why an operation is rejected. If ``first_windows`` is given, add the first window that fits."""
    begin = REJECTED_OPERATIONS[operation](numbers, code) if operation else ""
    return f"{begin}{_reason(code, numbers)}{_alternative(numbers, first_windows, operation)}"


def _reason(code: str, numbers: Numbers) -> str:
    if code in REASONS:
        return reason_sentence(code, numbers)
    sentence = REFUSALS[code]
    return sentence.format_map(numbers) if isinstance(sentence, str) else sentence(numbers)


def _alternative(numbers: Numbers, windows: Sequence[ReservationWindow], operation: str) -> str:
    more = numbers.get("more_occurrences") if operation == "confirm_series" else None
    others = f" {more} more of them do not fit either." if more else ""
    if not windows:
        return others
    start, end = (datetime.fromtimestamp(at, UTC) for at in (windows[0].start, windows[0].end))
    if operation == "confirm_series":
        return f"{others} The next window of that length: {window(start, end)}."
    return f" The first window of that length that fits starts {local_time_text(start)}."


def _named(numbers: Mapping[str, Any], what: str) -> str:
    """Return the names in ``numbers[what]`` and the number of names left out: ``a, b and 3 more``."""
    names = numbers[what]
    more = numbers["count"] - len(names)
    return f"{', '.join(names)} and {more} more" if more > 0 else ", ".join(names)


def _payers_text(n: Mapping[str, Any]) -> str:
    """Return the payers without a cost centre, each with the sentence that names who must act."""
    named = " ".join(f"{payer['name']}: {payer['who_acts']}" for payer in n["payers"])
    more = n["count"] - len(n["payers"])
    return f"{named} And {more} more." if more else named


def _item_text(item: Any) -> str:
    """Return an item of a figure as text, such as ``number: 2026-10-A1, author: ada``."""
    if not isinstance(item, Mapping):
        return str(item)
    return ", ".join(f"{name}: {value}" for name, value in item.items())


def _figures_text(figures: Mapping[str, Any]) -> str:
    """Return the figures of a check as text, such as ``behind: 2; never: 0``."""
    values = {
        name: "; ".join(map(_item_text, value)) if isinstance(value, list) else value
        for name, value in figures.items()
    }
    return "; ".join(f"{name}: {value}" for name, value in values.items())


def _local_time(value: Any) -> str:
    return local_time_text(datetime.fromisoformat(value))
