"""What the figures were measured on, and whether anything else ran beside."""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_ucc import config


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def keep_to_cores(count: int) -> list[int]:
    """Keeps this process and all it starts to the first `count` of the cores it may use; returns these."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, cores)
    return cores


def describe(cores: list[int]) -> dict[str, object]:
    return {
        "cpu": cpu_model(),
        "cores": len(cores),
        "cores_of_machine": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "settings": settings(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def settings() -> dict[str, str]:
    """Those of torch-ucc in the environment."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(config.PREFIX) and name not in config.OTHER_NAMES
    }


@dataclass(frozen=True)
class Clock:
    """A moment on three clocks, in seconds: the wall's, this process's with its children, the machine's."""

    wall: float
    own_cpu: float
    machine_cpu: float

    @staticmethod
    def now() -> Clock:
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        user, nice, system, _idle, _iowait, irq, softirq, steal = (
            int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        ticks = user + nice + system + irq + softirq + steal
        return Clock(
            time.monotonic(),
            sum(usage.ru_utime + usage.ru_stime for usage in own),
            ticks / os.sysconf("SC_CLK_TCK"),
        )


def foreign_load(start: Clock, end: Clock) -> float:
    """Cores that others kept busy between the two, stolen time included. Children must have ended."""
    elapsed = end.wall - start.wall
    foreign = (end.machine_cpu - start.machine_cpu) - (end.own_cpu - start.own_cpu)
    return max(0.0, foreign / elapsed) if elapsed else 0.0
