"""Attack the host from a job. One job makes all attempts and prints the result of each."""

from __future__ import annotations

import re

from benchmarks.trust_parts.attacks.registry import attack, control, defended
from benchmarks.trust_parts.attacks.target import AttackTarget

# Each line of the output is "NAME RESULT". A result of "worked" means that the attempt succeeded.
SCRIPT = r"""
import ctypes, glob, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
FOLDER, PORTS = sys.argv[1], [int(port) for port in sys.argv[2:]]
buffer = lambda size: ctypes.create_string_buffer(size)
def say(name, worked, detail=""):
    print("attempt", name, "worked" if worked else "refused", detail, flush=True)
def call(name, number, *arguments):
    result = libc.syscall(number, *arguments)
    say(name, result >= 0, ctypes.get_errno())
call("getpid", 39)
call("keyctl", 250, 0, -3, 1)
call("add_key", 248, b"user", b"x", b"y", 1, -3)
call("request_key", 249, b"user", b"x", None, 0)
call("bpf", 321, 0, buffer(128), 128)
call("userfaultfd", 323, 1)
call("perf_event_open", 298, buffer(128), 0, -1, -1, 0)
call("module", 175, b"x", 1, b"")
call("mount", 165, b"proc", b"/tmp", b"proc", 0, None)
call("pivot_root", 155, b"/tmp", b"/tmp")
call("unshare", 272, 0x10000000)
call("reboot", 169, 0xfee1dead, 672274793, 0x89abcdef, None)
call("open_by_handle", 304, 3, buffer(128), 0)
def reads(name, paths):
    found = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                found.append(path) if file.read(1) else None
        except OSError:
            pass
    say(name, found, ",".join(found)[:200])
reads("own_file", ["/proc/self/status"])
reads("identity", [FOLDER + "/identity.json", *glob.glob(FOLDER + "/../*/identity.json")])
site = FOLDER + "/../../site/"
reads("secrets", [site + "secrets.json", site + "environment.json", "/etc/shadow"])
reads("devices", ["/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/nvme0n1"])
def writes(name, paths):
    done = []
    for path in paths:
        try:
            with open(path, "w") as file:
                file.write("x")
            done.append(path)
        except OSError:
            pass
    say(name, done, ",".join(done)[:200])
writes("own_write", ["/tmp/x"])
writes("kernel", ["/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/sys/kernel/uevent_helper"])
writes("system", ["/etc/x", "/usr/bin/x", "/dev/x", FOLDER + "/x"])
seen = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        seen += b"agent\0run" in open("/proc/%s/cmdline" % pid, "rb").read()
    except OSError:
        pass
say("processes", seen, seen)
def reach(port):
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        return True
    except OSError:
        return False
say("network", any(map(reach, PORTS)))
try:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
    say("raw_socket", True)
except OSError as error:
    say("raw_socket", False, error.errno)
status = open("/proc/self/status").read()
say("privileges", "NoNewPrivs:\t1" not in status or "CapEff:\t0000000000000000" not in status)
secret = [name for name in os.environ if "TOKEN" in name or "PASSWORD" in name or "DATABASE" in name]
say("environment", secret, ",".join(secret))
def writes_value(name, path, value):
    try:
        with open(path, "w") as file:
            file.write(value)
        say(name, True)
    except OSError as error:
        say(name, False, error.errno)
writes_value("oom_score", "/proc/self/oom_score_adj", "-1000")
print("attack script ends", flush=True)
"""


def _result(target: AttackTarget, name: str) -> str:
    """Return "worked" or "refused" with the detail, from the output of the job that made all attempts."""
    text = getattr(target, "sandbox_output", "")
    if not text:
        host = target.site.hosts[1]  # the last one has no sandbox, because it can reboot
        ports = f"{target.site.port} {target.edge_port} 22 53"
        command = (
            f"cat > /tmp/attempts.py <<'END'\n{SCRIPT}\nEND\npython3 -S /tmp/attempts.py {host.state} {ports}"
        )
        text = target.output_of(command, host.name)
        target.sandbox_output = text  # type: ignore[attr-defined]
    found = re.search(rf"attempt {name} (.*)", text.replace("\\n", "\n"))
    control(found is not None, f"the job makes the attempt {name}: {text[-300:]}")
    assert found is not None
    return found[1]


def _refused(target: AttackTarget, *names: str) -> None:
    control(_result(target, "getpid").startswith("worked"), "a usual system call works")
    for name in names:
        result = _result(target, name)
        defended(result.startswith("refused"), f"{name} {result}")


@attack("the keys of other workloads (keyctl, add_key, request_key)")
def kernel_keys(target: AttackTarget) -> None:
    _refused(target, "keyctl", "add_key", "request_key")


@attack("programs in the kernel (bpf)")
def bpf(target: AttackTarget) -> None:
    _refused(target, "bpf")


@attack("userfaultfd, which helps to attack the kernel")
def userfaultfd(target: AttackTarget) -> None:
    _refused(target, "userfaultfd")


@attack("perf_event_open, which observes other processes")
def perf_event_open(target: AttackTarget) -> None:
    _refused(target, "perf_event_open")


@attack("kernel modules, reboot and file handles")
def privileged_calls(target: AttackTarget) -> None:
    _refused(target, "module", "reboot", "open_by_handle")


@attack("mounts and new namespaces")
def mounts(target: AttackTarget) -> None:
    _refused(target, "mount", "pivot_root", "unshare")


@attack("the credential of the host")
def credential_of_the_host(target: AttackTarget) -> None:
    control(target.identity_files(), "the agents have credentials")
    control(_result(target, "own_file").startswith("worked"), "the job reads its own files")
    _refused(target, "identity", "secrets")


@attack("devices and settings of the kernel")
def devices(target: AttackTarget) -> None:
    control(_result(target, "own_write").startswith("worked"), "the job writes its own files")
    _refused(target, "devices", "kernel", "system")


@attack("the processes of the agent and of other people")
def processes_of_others(target: AttackTarget) -> None:
    _refused(target, "processes")


@attack("the services of the machine over loopback, and raw sockets")
def network_of_the_machine(target: AttackTarget) -> None:
    _refused(target, "network", "raw_socket")


@attack("capabilities, secrets of the environment, and protection from the OOM killer")
def privileges_of_a_job(target: AttackTarget) -> None:
    _refused(target, "privileges", "environment", "oom_score")
