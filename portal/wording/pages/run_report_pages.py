"""Define texts of the page with the report of a run, and of the charts of use."""

from __future__ import annotations

NOT_MEASURED = "not measured"
ADVICE_TITLE = "What to ask for next time"
NO_ADVICE = "Nothing to change: the measured use fits the request."
NO_ADVICE_UNMEASURED = "The use is not measured well enough for advice."
RUNNING = "It still runs. The figures are those until now."
NOT_FINAL = "Samples may still arrive; the figures may change."
FINAL = "Final"
TRACKS = {
    "busy": "Busy, each GPU",
    "utilisation": "Utilisation, %",
    "sm_active": "SM active, %",
    "memory_mib": "GPU memory, GiB",
    "power_w": "Power, W",
    "dram_active": "GPU memory active (DRAM), %",
    "pcie_mib_s": "PCIe, both directions, MiB/s",
    "nvlink_mib_s": "NVLink, both directions, MiB/s",
    "cpu_cores": "CPU cores in use",
    "host_memory_mib": "Memory of the host, GiB",
    "io_mib_s": "Disk reads and writes, MiB/s",
    "network_mib_s": "Network, both directions, MiB/s",
}
# The part of the page with the figures on which each piece of advice rests.
ADVICE_ANCHORS = {
    "fewer_gpus": "gpus",
    "no_gpu": "gpus",
    "smaller_slice": "gpus",
    "more_cpu": "used",
    "waits_for_data": "used",
    "less_memory": "used",
    "shorter_limit": "life",
    "longer_limit": "life",
}
NOT_MEASURED_TRACK = "{track}: not measured"
CHART_TITLE = "The run over time"
POINT_HINT = "a point is {length}"
GPUS_TITLE = "Each GPU"
DAY_TITLE = "Its life"
RESOURCES_TITLE = "What it used"
COST_TITLE = "What it cost"
PRICES_TITLE = "Why it cost that"
PRICE_COLUMNS = (
    ("From, UTC", False),
    ("To, UTC", False),
    ("What", False),
    ("Seconds", True),
    ("GPUs", True),
    ("Price of a GPU-hour", True),
    ("Charged", True),
)
PRICES_FINDING = "Price x GPUs x seconds / 3,600, in each time with one price. Lost work is not charged."
PRICES_MORE = "{count} earlier times are in the CSV file."
NO_PRICE = "none"
MESSAGE = "Message {owner}"
COST_HINT = "The same figures as on the page Chargeback."
NO_PROCESS = "no process"
PREEMPTED_BAND = "preempted"
GAP_BAND = "no GPU"
CHECKPOINT_LINE = "checkpoint"
REDONE_BAND = "redone"
MEAN_LINE = "mean of {count} GPUs"
ALL_HOSTS_LINE = "all {count} hosts"
HIGHEST_LINE = "highest of {count} GPUs"
GPU_PARAMETER = "gpu is {given}; allowed: {allowed}."
GPUS_FROM_TO = "1 to {count}"
NO_GPU_CHOICE = "nothing, because each GPU has a line"
GPU_MENU, ALL_GPUS = "GPU", "Mean and highest"
TABLE_PARAMETER = "table is {given}; allowed: {allowed}."
SUBMITTED = "Asked for {units}"
STARTED = "Got its GPUs"
GAVE_WAY = "Gave way"
ATTEMPT_ENDED = "Attempt ended"
CHECKPOINT = "Last checkpoint"
ENDED = "Ended"
EXIT_CODE = "exit code {code}"
WAITED = "waited {time}"
GAP = "gap of {time}"
ASKED_AFTER = "{time} after it was asked for"
RESOURCES_NOTE = (
    "Energy is counted by the GPUs. CPU, memory and disks are counted by the control groups of the hosts; "
    "the memory includes the file cache. The network is counted if the run has its own."
)
TRAFFIC_TOTALS = {
    "io_read_bytes": "Read from disks in all",
    "io_written_bytes": "Written to disks in all",
    "network_rx_bytes": "Received in all",
    "network_tx_bytes": "Sent in all",
}
PROCESSES_TITLE = "Processes on its GPUs"
NO_LIMIT = "no limit"
LIFE_FINDING = "Of {total}, it held GPUs for {held} and waited for {waited}."
