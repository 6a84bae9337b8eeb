"""The first table of what is done about hardware events. Operators edit it; a later migration never writes over their choice."""

from __future__ import annotations

from django.db import migrations

CATALOGUE = "NVIDIA, Xid catalogue (docs.nvidia.com/deploy/xid-errors)"
RECOVERY = "NVIDIA, nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (field 230)"
OWN = "gpupool"

# The vendor's remedy decides the action: restart the host, reset the GPU, restart the application, look into it, or nothing.
RESTART_HOST = {79: "the GPU has fallen off the bus"}
RESET_GPU = {
    46: "the GPU stopped processing",
    62: "an internal micro-controller of the GPU halted",
    64: "a faulty memory row could not be remapped",
    95: "an uncorrectable memory error that reached other work",
    109: "switching between contexts took too long",
    110: "a security fault",
    119: "the GPU's system processor did not answer",
    120: "the GPU's system processor failed",
    136: "a link could not be trained",
    140: "an uncorrected memory error",
    143: "the GPU could not be initialised",
    155: "an NVLink error that software detected",
    156: "a resource of the GPU was retired",
    158: "a fatal time-out of the GPU",
}
RESTART_APPLICATION = {
    8: "the GPU stopped processing a channel",
    11: "an invalid stream of commands",
    13: "an exception of the compute engine, often a mistake in the program",
    25: "an illegal stream of commands",
    31: "a page fault in GPU memory, often a mistake in the program",
    32: "a corrupted stream of commands",
    69: "an error of the compute engine's class",
    80: "corrupted data was sent to the GPU",
    94: "an uncorrectable memory error that one program had to itself",
}
LOOK_INTO = {
    45: "clean-up after an earlier error",
    48: "an uncorrectable memory error",
    74: "an NVLink error",
    **dict.fromkeys(range(144, 151), "an NVLink error"),
}
IGNORE = {
    37: "an error of the driver's firmware",
    38: "an error of the driver's firmware",
    43: "a program was reset, the GPU is well",
    44: "a fault while switching contexts",
    63: "a memory page was retired or a row remapped",
    66: "the driver made an illegal access",
    67: "the driver made an illegal access",
    92: "many corrected memory errors",
    93: "the GPU's information store wears out",
    121: "a corrected error on the chip-to-chip link",
    137: "an NVLink access was refused",
    141: "informational",
    157: "a resource of the GPU could not be retired",
}


def rules() -> list[tuple[str, str, str, int, int, str]]:
    """(code, meaning, action, repeats, window in seconds, source)"""
    found = []
    for codes, action, repeats, window in (
        (RESTART_HOST, "cordon", 1, 3600),
        (RESET_GPU, "quarantine_gpu", 1, 3600),
        (RESTART_APPLICATION, "note", 1, 3600),
        (LOOK_INTO, "warn", 1, 3600),
        (IGNORE, "note", 1, 3600),
    ):
        found += [
            (f"xid:{code}", meaning, action, repeats, window, CATALOGUE)
            for code, meaning in sorted(codes.items())
        ]
    # The vendor's workflow for these two ends in a reset once they repeat.
    found = [
        (code, meaning, "quarantine_gpu", 3, 86_400, source)
        if code in ("xid:48", "xid:74")
        else (code, meaning, *rest, source)
        for code, meaning, *rest, source in found
    ]
    return [
        *found,
        ("recovery:gpu_reset", "the driver asks for a reset of the GPU", "quarantine_gpu", 1, 3600, RECOVERY),
        (
            "recovery:drain_and_reset",
            "the driver asks to drain and reset the GPU",
            "quarantine_gpu",
            1,
            3600,
            RECOVERY,
        ),
        ("recovery:drain_p2p", "the driver asks to drain work that uses peers", "warn", 1, 3600, RECOVERY),
        ("recovery:bus_reset", "the driver asks for a reset of the bus", "cordon", 1, 3600, RECOVERY),
        ("recovery:node_reboot", "the driver asks for a restart of the host", "cordon", 1, 3600, RECOVERY),
        (
            "recovery:system_reboot",
            "the driver asks for a restart of the system",
            "cordon",
            1,
            3600,
            RECOVERY,
        ),
        (
            "recovery:recover_imex_domain",
            "the driver asks to recover its IMEX domain",
            "warn",
            1,
            3600,
            RECOVERY,
        ),
        ("ecc:uncorrectable", "an uncorrectable memory error was counted", "warn", 1, 86_400, OWN),
        ("nvml:hung", "the driver does not answer", "cordon", 1, 3600, OWN),
        ("nvml:lost", "a GPU is no longer reported", "quarantine_gpu", 1, 3600, OWN),
        ("stray:process", "a process that belongs to no workload", "warn", 1, 3600, OWN),
    ]


def add_rules(apps, schema_editor):
    rule = apps.get_model("telemetry", "HealthRule")
    rule.objects.bulk_create(
        [
            rule(
                code=code,
                meaning=meaning,
                action=action,
                repeats=repeats,
                window_seconds=window,
                source=source,
            )
            for code, meaning, action, repeats, window, source in rules()
        ],
        ignore_conflicts=True,
    )
    apps.get_model("telemetry", "Retention").objects.get_or_create(pk=1)


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0002_partitions_and_guards")]

    operations = [migrations.RunPython(add_rules, migrations.RunPython.noop)]
