"""Set the wall clocks that the programs of an installation see."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.conditions import ConditionTimeout


class ShiftedClocks:
    """Wall clocks that can be set, one for the servers and one for each host.

    A small library is loaded before the C library (LD_PRELOAD). It reads an offset from a file and adds it to
    the wall clock, but to no other clock. libfaketime could do this too, but it is not installed everywhere.
    """

    SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
static int (*real)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("SHIFTED_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    real = dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0) return;
    void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
    close(file);
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    int done = real(clock, at);
    if (!done && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset;
    return done;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void) zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clocks"
        self.library = self.folder / "clock.so"
        self.folder.mkdir(parents=True, exist_ok=True)
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler:
            (self.folder / "clock.c").write_text(self.SOURCE)
            command = [
                compiler,
                "-shared",
                "-fPIC",
                "-O1",
                "-o",
                str(self.library),
                str(self.folder / "clock.c"),
                "-ldl",
            ]
            subprocess.run(command, check=True, capture_output=True)

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment variables for programs that use the clock ``name``.

        The result is empty if there is no C compiler to build the library.
        """
        if not self.library.exists():
            return {}
        self.set(name, 0)
        return {"LD_PRELOAD": str(self.library), "SHIFTED_CLOCK": str(self.folder / name)}

    def set(self, name: str, seconds: int) -> None:
        """Set the clock ``name`` to ``seconds`` after the real time, for all programs that use it."""
        if not self.library.exists():
            raise ConditionTimeout("a clock cannot be set without a C compiler")
        file = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, seconds.to_bytes(8, sys.byteorder, signed=True), 0)
        finally:
            os.close(file)
