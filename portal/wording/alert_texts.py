"""Build the sentences about alerts and their rules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from portal.wording.formatting import Numbers, duration, model_name, with_count

# Kinds of alerts, each with its label and its meaning.
ALERT_KIND_LABELS: dict[str, tuple[str, str]] = {
    "held_empty": ("Held and empty", "No process runs on any GPU of a job."),
    "held_idle": ("Held and idle", "A process runs, but no GPU of a job is busy."),
    "over_asked": ("Asked for too many", "A job uses only a part of its GPUs."),
    "reserved_unused": ("Reserved and unused", "Nobody uses the GPUs of a reservation."),
    "hot": ("Hot", "A GPU is hot."),
    "throttled": ("Throttled", "A GPU runs slower because of heat or a fault of its power supply."),
    "ecc_growth": ("Memory errors", "A GPU has new uncorrected memory errors."),
    "telemetry_gap": ("No samples", "A host answers, but its samples do not arrive."),
    "clock_skew": ("Wrong clock", "The clock of a host is wrong."),
    "long_wait": ("Long wait", "A request waits for GPUs for too long."),
}
ALERT_STATE_LABELS = {
    "firing": "New",
    "acknowledged": "Acknowledged",
    "snoozed": "Snoozed",
    "ended": "Ended",
}
UNIT_LABELS = {"%": "%", "minutes": "min", "°C": "°C", "errors": "errors", "seconds": "s"}
RULE_SAVED = "Saved. It is used within a minute."
RULE_RESET = "The rule has its default again."
ALERT_ACKNOWLEDGED = "Acknowledged."
ALERT_SNOOZED = "Snoozed. If its reason remains, it is shown as new again after that time."
SNOOZE_CHOICES = ((60, "1 h"), (480, "8 h"), (1440, "1 day"), (10_080, "1 week"))


def _minutes(numbers: Numbers) -> str:
    return duration(timedelta(minutes=float(numbers.get("minutes") or 0)))


def _gpus(numbers: Numbers, name: str) -> str:
    model = numbers.get("model")
    return f"{numbers.get(name, '?')} {model_name(str(model))}" if model else f"{numbers.get(name, '?')} GPUs"


def _steady_power(numbers: Numbers) -> str:
    power = numbers.get("power_w")
    return "" if power is None else f" Their power is steady, {power} W on average."


def _offset(numbers: Numbers) -> str:
    offset = float(numbers.get("offset") or 0.0)
    return f"{abs(offset):,.1f} s {'ahead' if offset > 0 else 'behind'}"


# The evidence of each kind as a sentence, from the value and the numbers of the alert.
EVIDENCE_SENTENCES: dict[str, Callable[[float, Numbers], str]] = {
    "held_empty": lambda v, n: (
        f"It holds {_gpus(n, 'gpus')}; none had a process for {_minutes(n)}.{_steady_power(n)}"
    ),
    "held_idle": lambda v, n: (
        f"It holds {_gpus(n, 'gpus')}; none was busy for {_minutes(n)}.{_steady_power(n)}"
    ),
    "over_asked": lambda v, n: (
        f"It holds {_gpus(n, 'gpus')}; {n.get('unused', '?')} of them were not used for {_minutes(n)}."
    ),
    "reserved_unused": lambda v, n: (
        f"{with_count(int(n.get('gpus') or 0), 'GPU')} reserved; no work came for "
        f"{duration(timedelta(minutes=v))}, and none waits."
    ),
    "hot": lambda v, n: f"At least {v:g} °C for {_minutes(n)}.",
    "throttled": lambda v, n: f"Slowed down in {v:.0f} % of the readings of {_minutes(n)}.",
    "ecc_growth": lambda v, n: f"{with_count(int(v), 'uncorrected memory error')} within {_minutes(n)}.",
    "telemetry_gap": lambda v, n: (
        f"It has sent no sample since it reported its GPUs, {duration(timedelta(minutes=v))} ago."
        if n.get("sampled_until", "known") is None
        else f"Its samples are missing for the last {duration(timedelta(minutes=v))}."
    ),
    "clock_skew": lambda v, n: f"Its clock is {_offset(n)}.",
    "long_wait": lambda v, n: (
        f"The longest wait is {duration(timedelta(minutes=v))}; "
        f"{with_count(int(n.get('waiting') or 0), 'request')} waiting for GPUs."
    ),
}


def alert_label(kind: str) -> str:
    """Return the label of a kind of alert, such as "Held and idle"."""
    return ALERT_KIND_LABELS.get(kind, ("Alert", ""))[0]


def alert_evidence(kind: str, value: float, numbers: Numbers) -> str:
    """Return the evidence of an alert as a sentence."""
    sentence = EVIDENCE_SENTENCES.get(kind)
    return "" if sentence is None else sentence(value, numbers)


def gpu_label(host: str, index: int) -> str:
    return f"{host}, GPU {index}"
