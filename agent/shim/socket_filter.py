"""Which sockets a workload may make: a filter of system calls, put together without a compiler."""

from __future__ import annotations

import array
import ctypes
import errno
import os

from agent.shim.libc import raise_on_error

# What a workload may make sockets of: what a network name space confines, and what CUDA and NCCL use; linux/socket.h.
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
# Of each way into the kernel (AUDIT_ARCH_ of linux/audit.h): the calls that make a socket of the family they are given, and the
# call that makes one of what it finds in memory, where a filter can't look. From the kernel's tables of system calls.
X86_64, I386, AARCH64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
SOCKET_SYSCALLS = {
    X86_64: ((41, 53), None),
    I386: ((359, 360), 102),
    AARCH64: ((198, 199), None),
    ARM: ((281, 288), None),
}
SOCKETCALL_NUMBERS = (1, 8)  # of the latter, linux/net.h: SYS_SOCKET and SYS_SOCKETPAIR
X32_SYSCALL_BIT = 0x40000000  # set in the numbers of X86_64 by programs with pointers of 32 bits
IO_URING_SETUP = 425  # everywhere; it makes sockets past every filter
BPF_LOAD, BPF_AND, BPF_IF_EQUAL, BPF_RETURN = 0x20, 0x54, 0x15, 0x06  # linux/bpf_common.h
AT_NUMBER, AT_ARCH, AT_FIRST_ARGUMENT = (
    0,
    4,
    16,
)  # in struct seccomp_data, its lower half on little-endian machines
SECCOMP_ALLOW, SECCOMP_ERRNO = 0x7FFF0000, 0x00050000
SECCOMP_NUMBERS = {"x86_64": 317, "aarch64": 277}  # of the system call; seccomp(2) for what it is asked
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2


def supports_seccomp_filters() -> bool:
    """Whether system calls can be filtered here: a kernel that has filters looks for the one that it is not given."""
    ctypes.set_errno(0)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, None)
    return os.uname().machine in SECCOMP_NUMBERS and ctypes.get_errno() == errno.EFAULT


def restrict_socket_families(libc: ctypes.CDLL) -> None:
    """From now on this process and what it starts make no sockets of families that belong to no network name space: vsock reaches
    the hypervisor and other virtual machines out of every one of them."""
    steps = socket_family_filter()
    place, length = steps.buffer_info()
    program = array.array("Q", [length, place])  # struct sock_fprog
    number, asked = SECCOMP_NUMBERS[os.uname().machine], ctypes.c_void_p(program.buffer_info()[0])
    # Without the flag, kernels before 5.16 slow the workload down for it; before 4.17 they don't know it.
    if libc.syscall(number, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, asked) != 0:
        raise_on_error(libc.syscall(number, SECCOMP_SET_MODE_FILTER, 0, asked), "address families")


def socket_family_filter() -> array.array[int]:
    """The filter as the kernel takes it, one struct sock_filter in 64 bits: code, how far to jump if so and if not, value."""
    steps: list[
        tuple[int, int, str]
    ] = []  # code, value, and of a question the mark to go to where the answer is yes
    marks: dict[str, int] = {}

    def ask(values: tuple[int, ...], to: str) -> None:
        steps.extend((BPF_IF_EQUAL, value, to) for value in values)

    def end(mark: str, answer: int) -> None:
        marks.setdefault(mark, len(steps))
        steps.append((BPF_RETURN, answer, ""))

    steps.append((BPF_LOAD, AT_ARCH, ""))
    for way in SOCKET_SYSCALLS:
        ask((way,), f"{way}")
    end("unknown", SECCOMP_ERRNO | errno.ENOSYS)  # way into the kernel
    for way, (calls, socketcall) in SOCKET_SYSCALLS.items():
        marks[f"{way}"] = len(steps)
        steps += [(BPF_LOAD, AT_NUMBER, ""), (BPF_AND, ~X32_SYSCALL_BIT & 0xFFFFFFFF, "")]
        ask(calls, "by family")
        ask((socketcall,) if socketcall else (), "by call")
        ask((IO_URING_SETUP,), "no such call")
        end("another call", SECCOMP_ALLOW)
    marks["by call"] = len(steps)
    steps.append((BPF_LOAD, AT_FIRST_ARGUMENT, ""))
    ask(SOCKETCALL_NUMBERS, "refused")
    end("no socket", SECCOMP_ALLOW)
    marks["by family"] = len(steps)
    steps.append((BPF_LOAD, AT_FIRST_ARGUMENT, ""))
    ask((AF_UNIX, AF_INET, AF_INET6, AF_NETLINK), "taken")
    end("refused", SECCOMP_ERRNO | errno.EAFNOSUPPORT)
    end("taken", SECCOMP_ALLOW)
    end("no such call", SECCOMP_ERRNO | errno.ENOSYS)
    jumps = [marks[to] - at - 1 if to else 0 for at, (_, _, to) in enumerate(steps)]
    return array.array(
        "Q", (code | yes << 16 | value << 32 for (code, value, _), yes in zip(steps, jumps, strict=True))
    )
