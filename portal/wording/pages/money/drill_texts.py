"""Define texts of the map of the fleet, and of the pages of one host, GPU and run below it."""

from __future__ import annotations

ALLOWED_HOST = "the name of a host that you may see"
ALLOWED_RUN = "the id of a workload that you may see, and that held this GPU in the period"
NO_GPU = "none, because the host has no GPU"
LEVEL_WITHOUT = "{field} is {given}; allowed: together with {needs}."
FLEET = "Fleet"
FLEET_TITLE = "Every host, hour by hour"
FLEET_HINT = "mean utilisation of the GPUs of each host where measured, in steps of {hours:g} h"
FLEET_OF_ALL_WORK = "{hint}; of all work on the hosts: only the filters of pool and model apply"
FLEET_FOLDED = "{hosts} hosts with {gpus} GPUs, {rows} hosts a row"
FLEET_ROWS = "{hosts} hosts with {gpus} GPUs"
FLEET_EMPTY = "No host was measured in this period. The map shows periods up to 62 days."
OPENS_HOST = "A click opens the host, then its GPUs, a run and its samples."
ROW_OF_HOSTS = "{first} to {last}"
FLEET_HOVER = "%{y}, %{x}: utilisation %{z} %<extra></extra>"
HOST_TITLE = "GPUs of {host}, hour by hour"
HOST_HINT = "mean utilisation of each GPU in each hour"
GPU_TITLE = "GPU {index} of {host}"
GPU_HINT = "mean utilisation in each hour; bars: who held the GPU"
OPENS_GPU = "A click opens the GPU."
OPENS_RUN = "A click on a run opens its samples."
RUN_HINT = "{label}, at most 600 points of the samples; no line is drawn where samples are missing"
OTHER_WORK = "work of another team"
NO_SAMPLES = "No sample of this run is stored for this period. Samples are kept for a limited time."
READING_LABELS = {
    "utilisation": ("Utilisation", "%"),
    "sm_active": ("SM active", "%"),
    "tensor_active": ("Tensor cores active", "%"),
    "sm_occupancy": ("SM occupancy", "%"),
    "graphics_active": ("Graphics or compute engine active", "%"),
    "fp64_active": ("FP64 pipe active", "%"),
    "fp32_active": ("FP32 pipe active", "%"),
    "fp16_active": ("FP16 pipe active", "%"),
    "dram_active": ("Memory bandwidth (DRAM)", "%"),
    "memory_utilisation": ("Time with a memory access", "%"),
    "memory_used_mib": ("Memory used", "MiB"),
    "power_w": ("Power", "W"),
    "power_limit_w": ("Power limit", "W"),
    "temperature_c": ("Temperature", "°C"),
    "memory_temperature_c": ("Temperature of the memory", "°C"),
    "fan_percent": ("Fan", "% of the highest speed"),
    "sm_clock_mhz": ("SM clock", "MHz"),
    "memory_clock_mhz": ("Memory clock", "MHz"),
    "video_clock_mhz": ("Video clock", "MHz"),
    "pcie_rx_kib": ("PCIe received", "KiB/s"),
    "pcie_tx_kib": ("PCIe sent", "KiB/s"),
    "nvlink_kib": ("NVLink, both directions", "KiB/s"),
    "encoder_utilisation": ("Video encoder", "%"),
    "decoder_utilisation": ("Video decoder", "%"),
    "processes": ("Processes", "processes"),
}
FILE_LABELS = {"gpu-hours": "Hours, CSV", "samples": "All samples, CSV"}
RUNS_TITLE = "Who held this GPU"
RUNNING = "running"
RUN_COLUMNS = ("Run", "Team", "From", "Until")
RUN_HOVER = "{name}: {length} in this period, {share} of the GPU"
GAP = "no samples"
EMPTY_PERIOD = "Choose a period of at most 62 days: a longer one is not read by GPU."
UTILISATION = "Utilisation"
LEVEL_NEEDED = "{field} is {given}; allowed: a value, because the answer {answer} needs it."
LEVEL_IGNORED = "{field} is {given}; allowed: nothing, because the answer {answer} has no such level."
