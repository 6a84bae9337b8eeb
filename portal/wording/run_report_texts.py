"""Build the sentences of the report of a run: its finding, and the advice with the numbers it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from portal.wording.formatting import cores, duration, gibibytes, with_count
from telemetry.core.request_advice import Advice
from telemetry.core.run_report import UnitReport, mean_of

Numbers = Mapping[str, Any]

# The headline of each piece of advice, by its code.
ADVICE_HEADLINES: dict[str, Callable[[Numbers], str]] = {
    "fewer_gpus": lambda n: f"Ask for {with_count(n['busy'], 'GPU')} instead of {n['asked']}",
    "no_gpu": lambda n: "Check why no GPU had work",
    "smaller_slice": lambda n: f"Ask for a slice {n['profile']} instead of a whole GPU",
    "more_cpu": lambda n: f"Ask for more than {cores(n['asked_cpu_milli'])}",
    "waits_for_data": lambda n: "Check what its GPUs wait for",
    "less_memory": lambda n: (
        f"Ask for {gibibytes(n['memory_mib'])} instead of {_size(n['asked_memory_mib'])}"
    ),
    "shorter_limit": lambda n: (
        f"Ask for at most {duration(n['suggested_seconds'])} instead of {duration(n['limit_seconds'])}"
    ),
    "longer_limit": lambda n: "Ask for more time, or save checkpoints",
}
# The sentences with the numbers on which a piece of advice rests, by its code.
ADVICE_EVIDENCE: dict[str, Callable[[Numbers], str]] = {
    "fewer_gpus": lambda n: (
        f"At most {n['busy']} of {with_count(n['asked'], 'GPU')} had work at once. {_unused_text(n)}"
    ),
    "no_gpu": lambda n: (
        f"None of its {with_count(n['asked'], 'GPU')} was busy. It held them for {n['held_hours']:,.2f} "
        "GPU-hours."
    ),
    "smaller_slice": lambda n: (
        f"The peak of its GPU memory was {_size(n['peak_mib'])} of {_size(n['gpu_mib'])}, and the GPU worked "
        f"at {_percent(n['activity'])}. The slice has {_size(n['slice_mib'])} and "
        f"{_percent(n['slice_compute'])} of a GPU."
    ),
    "more_cpu": lambda n: (
        f"The GPUs that had work were used at {_percent(n['utilisation'])}. It used "
        f"{cores(n['cpu_milli'])} of {n['asked_cpu_milli'] / 1000:g} on average: the GPUs may wait for the "
        "CPU."
    ),
    "waits_for_data": lambda n: (
        f"The GPUs that had work were used at {_percent(n['utilisation'])}, and the CPU at "
        f"{cores(n['cpu_milli'])} of {n['asked_cpu_milli'] / 1000:g}. Both wait: for data, the network or "
        "other hosts."
    ),
    "less_memory": lambda n: (
        f"The peak of its memory on a host was {_size(n['peak_memory_mib'])}, with the file cache."
    ),
    "shorter_limit": lambda n: (
        f"Its longest attempt took {duration(n['ran_seconds'])}. Work with a shorter limit fits into more "
        "gaps, so it may start earlier."
    ),
    "longer_limit": lambda n: (
        f"It was stopped at its limit of {duration(n['limit_seconds'])}, after {duration(n['ran_seconds'])}."
    ),
}
# The days are those of ``COMPARED_WAITS``.
EARLIER_START = (
    "In the 4 weeks before, {requests} requests for {gpus} in this pool waited {median} (median). This run "
    "waited {waited}, so it might have started {earlier} earlier."
)
MAIL_SUBJECT = "Report of {name}"
MAIL_WITHOUT_ADVICE = "The report of your run {name} is at {url}"
MAIL_WITH_ADVICE = "Your run {name} has a report with what to ask for next time:\n\n{advice}\n\n{url}"
COST_WITH_FEWER = "The same time would have cost {less} instead of {cost}."


def advice_headline(advice: Advice) -> str:
    """Return what to ask for next time, as a headline."""
    return ADVICE_HEADLINES[advice.code](advice.numbers)


def advice_evidence(advice: Advice) -> str:
    """Return the sentences with the numbers on which the advice rests."""
    return ADVICE_EVIDENCE[advice.code](advice.numbers)


def earlier_start_text(requests: int, gpus: int, median: float, waited: float) -> str:
    """Return the sentences that compare the wait of a run with those of requests for fewer GPUs."""
    return EARLIER_START.format(
        requests=requests,
        gpus=with_count(gpus, "GPU"),
        median=duration(median),
        waited=duration(waited),
        earlier=duration(waited - median),
    )


def report_mail(name: str, advice: Sequence[Advice], url: str) -> str:
    """Return the draft of a message to the owner of a run, with all advice of its report."""
    if not advice:
        return MAIL_WITHOUT_ADVICE.format(name=name, url=url)
    lines = "\n".join(f"- {advice_headline(each)}. {advice_evidence(each)}" for each in advice)
    return MAIL_WITH_ADVICE.format(name=name, advice=lines, url=url)


def use_finding(units: list[UnitReport]) -> str:
    """Return one sentence about the GPUs of a run; "" if nothing is known about them."""
    judged = [unit for unit in units if unit.was_busy is not None]
    working = [unit for unit in judged if unit.was_busy]
    if not judged:
        return ""
    if not working:
        return f"None of {with_count(len(judged), 'GPU')} had work."
    used = mean_of(working, "utilisation_seconds")
    level = "" if used is None else f", at {_percent(used)} on average"
    if len(working) == len(units):
        return f"{'Its GPU had work' if len(units) == 1 else f'All {len(units)} GPUs had work'}{level}."
    return f"{len(working)} of {with_count(len(units), 'GPU')} had work{level}."


def gaps_finding(count: int, time: timedelta, preempted: int) -> str:
    """Return a sentence about the time between the attempts of a workload; "" without such time."""
    if not count:
        return ""
    cause = "preemption" if preempted == count else "interruption"
    return f"{with_count(count, cause)} cost {duration(time)} of waiting."


def _unused_text(n: Numbers) -> str:
    if not n["unused_gpus"]:
        return "They took turns."
    return (
        f"{n['unused_gpus']} had no work in the whole run: {n['unused_hours']:,.2f} of "
        f"{n['held_hours']:,.2f} held GPU-hours."
    )


def _size(mib: int) -> str:
    return gibibytes(mib).removesuffix(" of memory")


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
