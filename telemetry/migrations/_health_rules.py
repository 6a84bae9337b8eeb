"""The health rules that migrations insert: one row per rule.

Append only. A new rule is a row of a new migration; a migration that ran elsewhere never inserts a row twice. Columns: number of
the migration, action, events until the rule acts, window in seconds, what counts (events, or people behind them), key of the
source in SOURCES, event code, meaning. A line that begins with spaces continues the meaning.

The vendor's remedy decides the action: a restart of the host gives ``cordon``, a reset of the GPU ``quarantine_gpu``, a restart
of the application ``note``, an investigation ``warn``, nothing ``note``. Two codes, xid:48 and xid:74, need a reset only when they
repeat. Codes that a program can cause count people, so that one person's programs take no GPU out of use.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCES = {
    "xid": "NVIDIA, Xid catalogue (docs.nvidia.com/deploy/xid-errors)",
    "xid-page": "NVIDIA, Xid catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html)",
    "gpupool": "gpupool",
    "nvml.h": "NVIDIA, nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (field 230)",
    "memory": "NVIDIA, GPU memory error management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt)",
    "clocks": "gpupool, on the clock event reasons of nvml.h",
    "links": "gpupool, on NVIDIA's remedies for XID 74 and 149",
}
# Where others act differently, and their source.
PLUGIN = "NVIDIA's Kubernetes device plugin (github.com/NVIDIA/k8s-device-plugin, health checks)"
CRUSOE = "Crusoe (docs.crusoecloud.com/command-center/instance-health)"
VESSL = "VESSL (docs.cloud.vessl.ai/vm-clusters/health-checks)"
AZURE = "Azure AKS (learn.microsoft.com/azure/aks/node-problem-detector)"
ELSEWHERE = {
    "xid:109": f"ignored as a mistake of the program: {PLUGIN}",
    "xid:119": f"only degraded: {CRUSOE}",
    "xid:120": f"only degraded: {CRUSOE}",
    "xid:140": f"only degraded: {CRUSOE}",
    "xid:143": f"only degraded: {CRUSOE}",
    "xid:32": f"unhealthy host: {CRUSOE}",
    "xid:94": f"GPU taken out: {PLUGIN}",
    "xid:48": f"unhealthy host at the first: {CRUSOE}",
    "xid:74": f"unhealthy host at the first: {CRUSOE}",
    "xid:63": f"GPU taken out: {PLUGIN}",
    "ecc:uncorrectable": f"critical: {VESSL}",
    "remap:pending": f"critical, restart of the host: {VESSL}",
    "nvlink:down": f"a problem of the host: {AZURE}",
}

TABLE = """
0001 cordon          1  3600 events xid      xid:79   the GPU has fallen off the bus
0001 quarantine_gpu  1  3600 events xid      xid:46   the GPU stopped processing
0001 quarantine_gpu  1  3600 events xid      xid:62   an internal micro-controller of the GPU halted
0001 quarantine_gpu  1  3600 events xid      xid:64   a faulty memory row could not be remapped
0001 quarantine_gpu  1  3600 events xid      xid:95   an uncorrectable memory error that reached other work
0001 quarantine_gpu  3 86400 people xid      xid:109  switching between contexts took too long
0001 quarantine_gpu  1  3600 events xid      xid:110  a security fault
0001 quarantine_gpu  1  3600 events xid      xid:119  the GPU's system processor did not answer
0001 quarantine_gpu  1  3600 events xid      xid:120  the GPU's system processor failed
0001 quarantine_gpu  1  3600 events xid      xid:136  a link could not be trained
0001 quarantine_gpu  1  3600 events xid      xid:140  an uncorrected memory error
0001 quarantine_gpu  1  3600 events xid      xid:143  the GPU could not be initialised
0001 quarantine_gpu  1  3600 events xid      xid:155  an NVLink error that software detected
0001 quarantine_gpu  1  3600 events xid      xid:156  a resource of the GPU was retired
0001 quarantine_gpu  1  3600 events xid      xid:158  a fatal time-out of the GPU
0001 note            1  3600 people xid      xid:8    the GPU stopped processing a channel
0001 note            1  3600 people xid      xid:11   an invalid stream of commands
0001 note            1  3600 people xid      xid:13   an exception of the compute engine, often a mistake in
     the program
0001 note            1  3600 people xid      xid:25   an illegal stream of commands
0001 note            1  3600 people xid      xid:31   a page fault in GPU memory, often a mistake in the
     program
0001 note            1  3600 people xid      xid:32   a corrupted stream of commands
0001 note            1  3600 people xid      xid:69   an error of the compute engine's class
0001 note            1  3600 people xid      xid:80   corrupted data was sent to the GPU
0001 note            1  3600 events xid      xid:94   an uncorrectable memory error that one program had to
     itself
0001 warn            1  3600 people xid      xid:45   clean-up after an earlier error
0001 quarantine_gpu  3 86400 events xid      xid:48   an uncorrectable memory error
0001 quarantine_gpu  3 86400 events xid      xid:74   an NVLink error
0001 warn            1  3600 events xid      xid:144  an NVLink error
0001 warn            1  3600 events xid      xid:145  an NVLink error
0001 warn            1  3600 events xid      xid:146  an NVLink error
0001 warn            1  3600 events xid      xid:147  an NVLink error
0001 warn            1  3600 events xid      xid:148  an NVLink error
0001 warn            1  3600 events xid      xid:149  an NVLink error
0001 warn            1  3600 events xid      xid:150  an NVLink error
0001 note            1  3600 events xid      xid:37   an error of the driver's firmware
0001 note            1  3600 events xid      xid:38   an error of the driver's firmware
0001 note            1  3600 people xid      xid:43   a program was reset, the GPU is well
0001 note            1  3600 events xid      xid:44   a fault while switching contexts
0001 note            1  3600 events xid      xid:63   a memory page was retired or a row remapped
0001 note            1  3600 events xid      xid:66   the driver made an illegal access
0001 note            1  3600 events xid      xid:67   the driver made an illegal access
0001 note            1  3600 events xid      xid:92   many corrected memory errors
0001 note            1  3600 events xid      xid:93   the GPU's information store wears out
0001 note            1  3600 events xid      xid:121  a corrected error on the chip-to-chip link
0001 note            1  3600 events xid      xid:137  an NVLink access was refused
0001 note            1  3600 events xid      xid:141  informational
0001 note            1  3600 events xid      xid:157  a resource of the GPU could not be retired
0001 quarantine_gpu  1  3600 events nvml.h   recovery:gpu_reset the driver asks for a reset of the GPU
0001 quarantine_gpu  1  3600 events nvml.h   recovery:drain_and_reset the driver asks to drain and reset the
     GPU
0001 warn            1  3600 events nvml.h   recovery:drain_p2p the driver asks to drain work that uses peers
0001 cordon          1  3600 events nvml.h   recovery:bus_reset the driver asks for a reset of the bus
0001 cordon          1  3600 events nvml.h   recovery:node_reboot the driver asks for a restart of the host
0001 cordon          1  3600 events nvml.h   recovery:system_reboot the driver asks for a restart of the
     system
0001 warn            1  3600 events nvml.h   recovery:recover_imex_domain the driver asks to recover its IMEX
     domain
0001 warn            1 86400 events gpupool  ecc:uncorrectable an uncorrectable memory error was counted
0001 cordon          1  3600 events gpupool  nvml:hung the driver does not answer
0001 quarantine_gpu  1  3600 events gpupool  nvml:lost a GPU is no longer reported
0001 warn            1  3600 events gpupool  stray:process a process that belongs to no workload
0001 note            1  3600 events xid-page xid:39   an error of a copy engine
0001 note            1  3600 events xid-page xid:40   an error of a copy engine
0001 note            1  3600 events xid-page xid:41   an error of a copy engine
0001 note            1  3600 events xid-page xid:60   an error of the GPU's security processor
0001 note            1  3600 people xid-page xid:68   an error of a video decoder
0001 note            1  3600 events xid-page xid:70   an error of a copy engine
0001 note            1  3600 events xid-page xid:71   an error of a copy engine
0001 note            1  3600 events xid-page xid:72   an error of a copy engine
0001 note            1  3600 events xid-page xid:75   an error of a copy engine
0001 note            1  3600 events xid-page xid:76   an error of a copy engine
0001 note            1  3600 events xid-page xid:77   an error of a copy engine
0001 note            1  3600 events xid-page xid:82   an error of a JPEG engine
0001 note            1  3600 events xid-page xid:83   an error of a video decoder
0001 note            1  3600 events xid-page xid:84   an error of a video decoder
0001 note            1  3600 events xid-page xid:85   an error of a copy engine
0001 note            1  3600 events xid-page xid:86   an error of the optical flow engine
0001 note            1  3600 events xid-page xid:88   an error of a video decoder
0001 note            1  3600 events xid-page xid:89   an error of a video decoder
0001 note            1  3600 events xid-page xid:96   an error of a video decoder
0001 note            1  3600 events xid-page xid:97   an error of a video decoder
0001 note            1  3600 events xid-page xid:98   an error of a video decoder
0001 note            1  3600 events xid-page xid:99   an error of a JPEG engine
0001 note            1  3600 events xid-page xid:100  an error of a JPEG engine
0001 note            1  3600 events xid-page xid:101  an error of a JPEG engine
0001 note            1  3600 events xid-page xid:102  an error of a JPEG engine
0001 note            1  3600 events xid-page xid:103  an error of a JPEG engine
0001 note            1  3600 events xid-page xid:104  an error of a JPEG engine
0001 note            1  3600 events xid-page xid:105  an error of a JPEG engine
0001 note            1  3600 events xid-page xid:126  an error of a copy engine
0001 note            1  3600 events xid-page xid:127  an error of a copy engine
0001 note            1  3600 events xid-page xid:128  an error of a copy engine
0001 note            1  3600 events xid-page xid:129  an error of a copy engine
0001 note            1  3600 events xid-page xid:130  an error of a copy engine
0001 note            1  3600 events xid-page xid:131  an error of a copy engine
0001 note            1  3600 events xid-page xid:132  an error of a copy engine
0001 note            1  3600 events xid-page xid:133  an error of a copy engine
0001 note            1  3600 events xid-page xid:134  an error of a copy engine
0001 note            1  3600 events xid-page xid:135  an error of a copy engine
0001 note            1  3600 events xid-page xid:139  an error of the second optical flow engine
0001 warn            1  3600 events xid-page xid:54   too little auxiliary power; check the cables
0001 warn            1  3600 events xid-page xid:78   a virtual GPU could not be started; update its software
0001 warn            1  3600 events xid-page xid:142  an error of a video encoder
0001 warn            1  3600 events xid-page xid:151  the rotation of a security key failed; the catalogue
     restarts the virtual machine
0001 warn            1  3600 events xid-page xid:159  an error of the chip-to-chip link; matters where
     unified memory is used
0001 warn            1  3600 events xid-page xid:167  a fatal time-out of PCIe; the catalogue names no remedy
0001 warn            1  3600 events xid-page xid:168  the GPU has less memory than it was built with; the
     catalogue names no remedy
0001 warn            1  3600 events xid-page xid:169  the GPU's security processor halted; the catalogue
     names no remedy
0001 warn            1  3600 events xid-page xid:171  an uncorrectable error in the GPU's memory; the
     catalogue names no remedy
0001 warn            1  3600 events xid-page xid:172  an uncorrectable error in the GPU's caches; the
     catalogue names no remedy
0001 note            1  3600 events xid-page xid:106  a test message
0001 note            1  3600 events xid-page xid:107  a silent test message
0001 note            1  3600 events xid-page xid:108  a peer could not translate an address over NVLink
0001 note            1  3600 events xid-page xid:152  an error of the deep learning accelerator's memory unit
0001 note            1  3600 events xid-page xid:153  a time-out of the deep learning accelerator
0001 note            1  3600 events xid-page xid:154  the driver changed what it asks for; the recovery
     action says what
0001 note            1  3600 events xid-page xid:160  a memory channel was retired
0001 note            1  3600 events xid-page xid:161  a memory channel could not be retired
0001 note            1  3600 events xid-page xid:162  about the lifetime of the power smoothing circuit
0001 note            1  3600 events xid-page xid:163  about the lifetime of the power smoothing circuit
0001 note            1  3600 events xid-page xid:164  about the lifetime of the power smoothing circuit
0001 note            1  3600 events xid-page xid:165  about the lifetime of the power smoothing circuit
0001 note            1  3600 events xid-page xid:166  an error of NVLink encryption
0001 note            1  3600 events xid-page xid:170  an error of secure NVLink
0001 warn            1 86400 events memory   ecc:double_bit the driver counted an uncorrectable memory error
0001 warn            1 86400 events memory   remap:pending a memory row is replaced at the next reset of the
     GPU; work may go on until then
0001 quarantine_gpu  1 86400 events memory   remap:failed no spare row is left for a faulty one: the vendor
     replaces such a GPU
0001 note            1 86400 events memory   remap:uncorrectable a memory row was replaced after an
     uncorrectable error
0001 warn            3  3600 events clocks   throttle:thermal slowed down because it is too hot
0001 warn            3  3600 events clocks   throttle:power_brake slowed down by the power brake of its
     server
0001 warn            3  3600 events clocks   throttle:hardware slowed down by the hardware, for heat or power
0001 warn            1  3600 events links    nvlink:down a link to another GPU went down
0001 warn           10  3600 events links    nvlink:errors a link to another GPU had to recover or to replay
0001 cordon          3  1800 events gpupool  breaker:attempts attempts of different workloads failed on one
     host
0001 cordon          1  3600 events gpupool  nvml:unreadable the driver can't be asked
0001 warn            1  3600 events gpupool  gpu:missing its host does not report it any more
0001 note            1  3600 people gpupool  stray:ended a process that belongs to no workload was ended, as
     the pool says
0025 warn            1 86400 events gpupool  clock:skew the clock of the host is more than ten minutes wrong; its
     samples are lost
"""


class RuleRow(NamedTuple):
    """One rule of the table. ``elsewhere`` is empty if no differing practice is known."""

    migration: str
    code: str
    meaning: str
    action: str
    repeats: int
    window_seconds: int
    counts: str
    source: str
    elsewhere: str


def rules_of(*migrations: str) -> list[RuleRow]:
    """Return the rows that the migrations with these numbers insert, in the order of the table."""
    return [row for row in _parse_table() if row.migration in migrations]


def _parse_table() -> list[RuleRow]:
    rows: list[RuleRow] = []
    for line in TABLE.strip().splitlines():
        if line.startswith(" "):
            rows[-1] = rows[-1]._replace(meaning=f"{rows[-1].meaning} {line.strip()}")
            continue
        migration, action, repeats, window, counts, source, code, meaning = line.split(None, 7)
        rows.append(
            RuleRow(
                migration,
                code,
                meaning,
                action,
                int(repeats),
                int(window),
                counts,
                SOURCES[source],
                ELSEWHERE.get(code, ""),
            )
        )
    return rows
