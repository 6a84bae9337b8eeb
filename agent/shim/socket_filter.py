"""Builds the seccomp filter that limits the socket families and system calls of a workload.

It needs no compiler.
"""

from __future__ import annotations

import array
import ctypes
import errno
import os

from agent.shim.libc import raise_on_error

# The allowed socket families. Each of them is confined by a network namespace or needed by CUDA and NCCL. The
# numbers are from linux/socket.h.
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
# By system call ABI (AUDIT_ARCH_ in linux/audit.h): the numbers of the system calls socket and socketpair,
# and the number of socketcall, or None. A filter can't read the socket family of a socketcall, because the
# family is in the memory of the process. Therefore a socketcall may create no socket of any family.
# Source: the kernel's tables of system calls.
X86_64, I386, AARCH64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
SOCKET_SYSCALLS = {
    X86_64: ((41, 53), None),
    I386: ((359, 360), 102),
    AARCH64: ((198, 199), None),
    ARM: ((281, 288), None),
}
# System calls of the kernel that no workload needs, and that attacks on the kernel often use: add_key,
# request_key and keyctl (the keys of a user are shared by all workloads of that user), bpf and userfaultfd.
# The values are their numbers in the same order.
BLOCKED_SYSCALLS = {
    X86_64: (248, 249, 250, 321, 323),
    I386: (286, 287, 288, 357, 374),
    AARCH64: (217, 218, 219, 280, 282),
    ARM: (309, 310, 311, 386, 388),
}
# Profilers need this system call. It is blocked unless the pool allows it.
PERF_EVENT_OPEN = {X86_64: 298, I386: 336, AARCH64: 241, ARM: 364}
SOCKETCALL_NUMBERS = (1, 8)  # SYS_SOCKET and SYS_SOCKETPAIR of socketcall, linux/net.h
X32_SYSCALL_BIT = 0x40000000  # a bit in the system call numbers of x32 programs (x86_64 with 32-bit pointers)
IO_URING_SETUP = 425  # equal on all architectures; io_uring can create sockets that no filter sees
BPF_LOAD, BPF_AND, BPF_IF_EQUAL, BPF_RETURN = 0x20, 0x54, 0x15, 0x06  # linux/bpf_common.h
# Offsets in struct seccomp_data. AT_FIRST_ARGUMENT is the lower half of the argument (little-endian).
AT_NUMBER, AT_ARCH, AT_FIRST_ARGUMENT = 0, 4, 16
SECCOMP_ALLOW, SECCOMP_ERRNO = 0x7FFF0000, 0x00050000
SECCOMP_NUMBERS = {"x86_64": 317, "aarch64": 277}  # number of the system call seccomp(2)
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2


def supports_seccomp_filters() -> bool:
    """Return True if the kernel supports seccomp filters.

    The call passes a null pointer as the filter. A kernel that supports filters tries to read it and fails
    with EFAULT.
    """
    ctypes.set_errno(0)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, None)
    return os.uname().machine in SECCOMP_NUMBERS and ctypes.get_errno() == errno.EFAULT


def restrict_socket_families(libc: ctypes.CDLL, *, perf_events: bool = False) -> None:
    """Block all socket families except the allowed ones, in this process and its children. Raises OSError.

    The system calls of BLOCKED_SYSCALLS are blocked too, and perf_event_open unless ``perf_events`` is True.

    No network namespace confines some of the blocked families. For example, vsock reaches the hypervisor and
    other virtual machines from every network namespace.
    """
    steps = socket_family_filter(perf_events=perf_events)
    address, length = steps.buffer_info()
    program = array.array("Q", [length, address])  # struct sock_fprog
    number, asked = SECCOMP_NUMBERS[os.uname().machine], ctypes.c_void_p(program.buffer_info()[0])
    # Without the flag, kernels before 5.16 slow the workload down. Kernels before 4.17 do not know the flag.
    if libc.syscall(number, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, asked) != 0:
        raise_on_error(libc.syscall(number, SECCOMP_SET_MODE_FILTER, 0, asked), "address families")


def socket_family_filter(*, perf_events: bool = False) -> array.array[int]:
    """Return the filter as an array of 64-bit numbers. ``perf_events``: True to allow perf_event_open.

    Each number is one struct sock_filter. Its fields are the code, the jump if true, the jump if false and
    the value.
    """
    steps: list[tuple[int, int, str]] = []  # (code, value, mark to jump to if a comparison is true)
    marks: dict[str, int] = {}

    def jump_if_equal(values: tuple[int, ...], to: str) -> None:
        steps.extend((BPF_IF_EQUAL, value, to) for value in values)

    def end(mark: str, answer: int) -> None:
        marks.setdefault(mark, len(steps))
        steps.append((BPF_RETURN, answer, ""))

    steps.append((BPF_LOAD, AT_ARCH, ""))
    for abi in SOCKET_SYSCALLS:
        jump_if_equal((abi,), f"{abi}")
    end("unknown", SECCOMP_ERRNO | errno.ENOSYS)  # an unknown system call ABI
    for abi, (calls, socketcall) in SOCKET_SYSCALLS.items():
        marks[f"{abi}"] = len(steps)
        steps += [(BPF_LOAD, AT_NUMBER, ""), (BPF_AND, ~X32_SYSCALL_BIT & 0xFFFFFFFF, "")]
        jump_if_equal(calls, "by family")
        jump_if_equal((socketcall,) if socketcall else (), "by call")
        jump_if_equal((IO_URING_SETUP,), "no such call")
        jump_if_equal(BLOCKED_SYSCALLS[abi], "not permitted")
        jump_if_equal(() if perf_events else (PERF_EVENT_OPEN[abi],), "not permitted")
        end("another call", SECCOMP_ALLOW)
    marks["by call"] = len(steps)
    steps.append((BPF_LOAD, AT_FIRST_ARGUMENT, ""))
    jump_if_equal(SOCKETCALL_NUMBERS, "refused")
    end("no socket", SECCOMP_ALLOW)
    marks["by family"] = len(steps)
    steps.append((BPF_LOAD, AT_FIRST_ARGUMENT, ""))
    jump_if_equal((AF_UNIX, AF_INET, AF_INET6, AF_NETLINK), "taken")
    end("refused", SECCOMP_ERRNO | errno.EAFNOSUPPORT)
    end("taken", SECCOMP_ALLOW)
    end("no such call", SECCOMP_ERRNO | errno.ENOSYS)
    end("not permitted", SECCOMP_ERRNO | errno.EPERM)
    jumps = [marks[to] - at - 1 if to else 0 for at, (_, _, to) in enumerate(steps)]
    return array.array(
        "Q", (code | yes << 16 | value << 32 for (code, value, _), yes in zip(steps, jumps, strict=True))
    )
