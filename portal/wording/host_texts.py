"""Describe actions on hosts and GPUs, their effect on workloads, and the work left on a closed host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from portal.wording.formatting import Numbers, date_and_time, gpu_list, parsed_time, window
from portal.wording.reason_numbers import ReasonNumbers
from scheduler.state.isolation import ISOLATION_LEVELS, Isolation, is_weaker_isolation


@dataclass(frozen=True)
class HostVerb:
    """The texts of an action on a host.

    ``text`` states the effect and is shown before the action. ``done`` confirms the action; its ``{}`` is the
    host's name.
    """

    text: str
    done: str


HOST_VERBS = {
    "cordon": HostVerb(
        "Nothing new starts on it. Running work continues to its end.",
        "{} is cordoned: nothing new starts on it.",
    ),
    "drain": HostVerb(
        "Nothing new starts on it. Preemptible work gets a notice, writes its checkpoint and resumes "
        "elsewhere; other work runs to its end.",
        "{} is draining: nothing new starts on it.",
    ),
    "return": HostVerb(
        "New work may start on it at once. If it was quarantined, "
        "you confirm that no earlier work still runs on it.",
        "{} is back in service.",
    ),
    "off": HostVerb(
        "Its work counts as lost and restarts elsewhere at once, before its lease expires. Its GPUs may be "
        "put into another machine. Confirm this only if you saw the machine off or had it power-cycled: a "
        "machine without network may still compute, and then two runs would write the same files.",
        "{} counts as powered off. Its work starts elsewhere.",
    ),
    "revoke": HostVerb(
        "Its agent is disconnected at once and gets no more orders. Its work stops when its lease expires "
        "and then starts elsewhere. The host can join again with a new join token.",
        "The credential of {} is revoked. The host can join again with a new join token.",
    ),
    "maintenance": HostVerb(
        "No work is planned into the window. Work that can't end before the window does not start there. "
        "Work that still runs shortly before the window is stopped with notice and grace, even if it can't "
        "be preempted.",
        "The maintenance of {} is announced: no work is scheduled into the window.",
    ),
}
# Effects that an action on a host has on its workloads, each with its text.
WORKLOAD_EFFECTS = {
    "runs_on": "runs on",
    "leaves": "leaves",
    "moves": "checkpoints, then starts elsewhere at once",
    "moves_and_waits": "checkpoints, then waits for free GPUs",
    "runs_to_end": "runs to its end: it can't be preempted",
    "lease": "stops when its lease ends",
    "lost": "counts as lost, starts elsewhere",
    "before": "ends before the window",
    "moved_before": "is stopped before the window, unless it has ended",
}


def workload_effect_text(happens: str, begins_anew: bool = False) -> str:
    """Return the text of ``happens``, a key of WORKLOAD_EFFECTS.

    ``begins_anew`` adds that the workload starts from the beginning, because its checkpoint is unreachable.
    """
    anew = (
        " – in another home folder: it does not find the checkpoint and starts from the beginning"
        if begins_anew
        else ""
    )
    return f"{WORKLOAD_EFFECTS[happens]}{anew}"


# Verbs of audit records, each with its text, for actions that change no state of the host.
HOST_ACTIONS: dict[str, Callable[[ReasonNumbers], str]] = {
    "add_host": lambda f: "Added",
    "remove_host": lambda f: "Removed",
    "move_host": lambda f: "Moved to another pool",
    "new_join_token": lambda f: "A join token was created; unused earlier tokens no longer work",
    "revoke_host": lambda f: "Its agent's credential was revoked",
    "attest_host_off": lambda f: "It counts as powered off",
    "set_maintenance": lambda f: (
        f"Maintenance announced: {window(parsed_time(f.get('start')), parsed_time(f.get('end')))}"
    ),
    "cancel_maintenance": lambda f: (
        f"Maintenance cancelled: {window(parsed_time(f.get('start')), parsed_time(f.get('end')))}"
    ),
    "set_dcgm_target": lambda f: f"Its dcgm-exporter is read at {f.plain('', 'url')}",
    "remove_dcgm_target": lambda f: f"Its dcgm-exporter at {f.plain('', 'url')} is no longer read",
    "diagnose_gpu": lambda f: f"GPU {f.plain('', 'gpu')} is to be diagnosed",
    "diagnose_host": lambda f: f"To be diagnosed: {gpu_list(f.get('gpus') or [])}",
    "forget_gpu": lambda f: f"GPU {f.plain('', 'gpu')} ({f.plain('', 'uuid')}) is gone for good",
    "change_geometry": lambda f: f"GPU {f.plain('', 'gpu')} is to become {f.plain('', 'geometry')}",
    "withdraw_geometry": lambda f: (
        f"GPU {f.plain('', 'gpu')} stays as it is: the change to {f.plain('', 'geometry')} was withdrawn"
    ),
}


def host_action_text(verb: str, numbers: Numbers) -> str:
    """Return the text of a person's action on a host, without the person's name and reason."""
    words = HOST_ACTIONS.get(verb)
    return words(ReasonNumbers(numbers, None)) if words else verb.replace("_", " ").capitalize()


def maintenance_windows_text(host: str, windows: Sequence[tuple[str, datetime, datetime]]) -> str:
    """Return the end of the message about an unknown maintenance window.

    It lists the host's announced windows with their numbers.
    """
    listed = ", ".join(f"{number} ({window(start, end)})" for number, start, end in windows)
    return f"announced for {host}: {listed}." if listed else f"{host} has no maintenance window announced."


def remaining_work_sentence(
    leaving: Sequence[tuple[str, datetime]], staying: Sequence[tuple[str, datetime]]
) -> str:
    """Return sentences about the work that remains on a closed host.

    ``leaving`` are workloads that were asked to stop. ``staying`` are workloads that run to their end. Both
    lists contain (name, latest end), sorted by latest end.
    """
    if not leaving and not staying:
        return "Nothing runs on it any more."
    said = []
    if leaving:
        said.append(f"Still leaving: {_named(leaving)}, by {date_and_time(leaving[-1][1])} at the latest.")
    if staying:
        verb = "runs to its end" if len(staying) == 1 else "run to their ends"
        said.append(f"{_named(staying)} {verb}, by {date_and_time(staying[-1][1])} at the latest.")
    return " ".join(said)


def _named(rows: Sequence[tuple[str, datetime]], most: int = 4) -> str:
    """Return at most ``most`` names as a list in words, and the number of the others: ``a, b and 3 more``."""
    names = [name for name, _ in rows[:most]]
    if len(rows) > most:
        return f"{', '.join(names)} and {len(rows) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# The label and the unit of each reading of a GPU.
READING_LABELS = {
    "ts": ("Clock", "s"),
    "utilisation": ("Utilisation", "%"),
    "sm_active": ("SM activity", "%"),
    "tensor_active": ("Tensor activity", "%"),
    "memory_used_mib": ("Memory", "MiB"),
    "memory_utilisation": ("Memory activity", "%"),
    "power_w": ("Power", "W"),
    "energy_mj": ("Energy counter", "mJ"),
    "temperature_c": ("Temperature", "°C"),
    "memory_temperature_c": ("Memory temperature", "°C"),
    "sm_clock_mhz": ("SM clock", "MHz"),
    "throttle_reasons": ("Throttle reasons", ""),
    "pcie_rx_kib": ("PCIe receive", "KiB/s"),
    "pcie_tx_kib": ("PCIe send", "KiB/s"),
    "nvlink_kib": ("NVLink", "KiB/s"),
    "processes": ("Processes", ""),
    "stray_processes": ("Processes outside workloads", ""),
    "graphics_active": ("Graphics engine", "%"),
    "sm_occupancy": ("SM occupancy", "%"),
    "dram_active": ("DRAM activity", "%"),
    "fp64_active": ("FP64 activity", "%"),
    "fp32_active": ("FP32 activity", "%"),
    "fp16_active": ("FP16 activity", "%"),
    "encoder_utilisation": ("Encoder", "%"),
    "decoder_utilisation": ("Decoder", "%"),
    "fan_percent": ("Fan", "%"),
    "power_limit_w": ("Power limit", "W"),
    "memory_clock_mhz": ("Memory clock", "MHz"),
    "video_clock_mhz": ("Video clock", "MHz"),
    "pcie_rx_bytes": ("PCIe receive counter", "bytes"),
    "pcie_tx_bytes": ("PCIe send counter", "bytes"),
    "nvlink_rx_bytes": ("NVLink receive counter", "bytes"),
    "nvlink_tx_bytes": ("NVLink send counter", "bytes"),
    "run_cpu_seconds": ("CPU time of a run", "s"),
    "run_memory_mib": ("Memory of a run", "MiB"),
    "run_memory_peak_mib": ("Peak memory of a run", "MiB"),
    "run_io_read_bytes": ("Bytes that a run read", "bytes"),
    "run_io_written_bytes": ("Bytes that a run wrote", "bytes"),
    "run_network_rx_bytes": ("Bytes that a run received", "bytes"),
    "run_network_tx_bytes": ("Bytes that a run sent", "bytes"),
    "host_cpu_seconds": ("CPU time of the host", "s"),
    "host_memory_used_mib": ("Memory of the host", "MiB"),
    "host_disk_bytes": ("Disk size", "bytes"),
    "host_disk_free_bytes": ("Free space of the disk", "bytes"),
    "process_sm_percent": ("SM share of a process", "%"),
    "process_memory_mib": ("GPU memory of a process", "MiB"),
    "throttle_sw_thermal_ns": ("Time throttled by the driver for heat", "ns"),
    "throttle_hw_thermal_ns": ("Time throttled by the hardware for heat", "ns"),
    "throttle_hw_power_brake_ns": ("Time throttled by a power brake", "ns"),
    "xid": ("XID", ""),
    "pcie_replays": ("PCIe replays", ""),
    "ecc_corrected_volatile": ("Corrected ECC errors since the driver was loaded", ""),
    "ecc_uncorrected_volatile": ("Uncorrected ECC errors since the driver was loaded", ""),
    "ecc_corrected": ("Corrected ECC errors", ""),
    "ecc_uncorrected": ("Uncorrected ECC errors", ""),
    "retired_pages_corrected": ("Pages retired for corrected errors", ""),
    "retired_pages_uncorrected": ("Pages retired for uncorrected errors", ""),
    "retired_pages_pending": ("Pages to be retired", ""),
    "remapped_rows_corrected": ("Rows remapped for corrected errors", ""),
    "remapped_rows_uncorrected": ("Rows remapped for uncorrected errors", ""),
    "row_remap_failed": ("Failed row remapping", ""),
    "row_remap_pending": ("Pending row remapping", ""),
    "nvlink_flit_errors": ("NVLink flit errors", ""),
    "nvlink_data_errors": ("NVLink data errors", ""),
    "nvlink_replays": ("NVLink replays", ""),
    "nvlink_recoveries": ("NVLink recoveries", ""),
    "throttle_power_ns": ("Throttled for power", "ns"),
    "throttle_thermal_ns": ("Throttled for heat", "ns"),
    "throttle_sync_boost_ns": ("Throttled by sync boost", "ns"),
    "throttle_board_limit_ns": ("Throttled by the board's limit", "ns"),
    "throttle_low_utilisation_ns": ("Throttled for low utilisation", "ns"),
    "throttle_reliability_ns": ("Throttled for reliability", "ns"),
    "line": ("Lines of dcgm-exporter", ""),
    "gpu": ("GPUs at dcgm-exporter", ""),
}
FAULT_KINDS = {
    "out_of_bounds": "impossible value, stored as unknown",
    "counter": "fell or grew too fast, the energy is unknown",
    "clock_corrected": "wrong, the time of the samples is corrected",
    "clock_refused": "too wrong, the samples are lost",
    "unreadable_line": "can't be parsed, ignored",
    "foreign_gpu": "not of this host, refused",
}
READING_SOURCES = {"nvml": "NVML", "simulated": "simulated", "dcgm": "dcgm-exporter"}
# Problems of the last scrape of a dcgm-exporter.
DCGM_PROBLEMS = {
    "": "",
    "unreachable": "no connection",
    "timeout": "no complete answer within 5 seconds",
    "redirect": "it answered with a redirect, which is not followed",
    "status": "it answered with an error",
    "too_large": "its answer has more than 8 MiB",
    "encoded": "its answer is compressed",
    "not_text": "its answer is not UTF-8 text",
    "no_gpu": "its answer has no value of a GPU of this host",
}


ISOLATION_BY_FIRST_HOSTS = "The first hosts of the pool provide it."
ISOLATION_UNDECIDED = (
    "When its first host has joined, the pool demands the isolation that this host provides."
)


def isolation_note(demanded: str, provided: Collection[str], is_undecided: bool) -> str:
    """Return what an operator should know about the isolation of a pool; empty if there is nothing.

    ``provided`` are the levels of its hosts. ``is_undecided``: the first hosts of the pool decide.
    """
    if is_undecided:
        return ISOLATION_UNDECIDED
    weakest = min(provided, key=ISOLATION_LEVELS.index, default=demanded)
    if is_weaker_isolation(demanded, weakest):
        return f"Every host provides {Isolation(weakest).label}: the pool may demand it."
    if is_weaker_isolation(demanded, Isolation.TEAM_USERS):
        return "Workloads of different teams share a user on its hosts, so the pool does not separate teams."
    if is_weaker_isolation(demanded, Isolation.LIMITS):
        return "Its hosts need not limit CPU, memory and processes: a workload may slow down the others."
    return ""
