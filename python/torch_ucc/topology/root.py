"""The one way to the machine: its files below a folder, and what only a call can tell. Both can be
injected."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from torch_ucc.topology import nvml, sysv


def _capacity(path: str) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.total, usage.free


class Root:
    """A machine. What is not there, or may not be read, is empty: no probe fails because a file is
    missing."""

    def __init__(
        self,
        folder: Path = Path("/"),
        capacity: Callable[[str], tuple[int, int]] = _capacity,
        graphics: Callable[[], Sequence[nvml.Graphics]] = nvml.graphics,
        has_sysv: Callable[[], bool] = sysv.works,
    ) -> None:
        """`capacity` tells bytes and free bytes of a file system, `graphics` what NVML knows, `has_sysv`
        whether there is shared memory of System V."""
        self._folder = os.path.realpath(folder)
        self._capacity = capacity
        self.graphics = graphics
        self.has_sysv = has_sysv

    def _at(self, path: str) -> str:
        return os.path.join(self._folder, path.lstrip("/"))  # noqa: PTH118  many small reads: a Path costs more

    def text(self, path: str) -> str:
        try:
            with open(self._at(path)) as file:  # noqa: PTH123
                return file.read().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def number(self, path: str) -> int | None:
        text = self.text(path)
        try:
            return int(text, 0)
        except ValueError:
            return None

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))  # noqa: PTH208
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))  # noqa: PTH110

    def link(self, path: str) -> str:
        """What a link says, which need not be a path."""
        try:
            return os.readlink(self._at(path))  # noqa: PTH115
        except OSError:
            return ""

    def resolved(self, path: str) -> str:
        """Where a path leads in the end, seen from this root; empty if nowhere."""
        real = os.path.realpath(self._at(path))
        if not os.path.exists(real):  # noqa: PTH110
            return ""
        return "/" + os.path.relpath(real, self._folder)

    def capacity(self, path: str) -> tuple[int, int]:
        try:
            return self._capacity(path)
        except OSError:
            return 0, 0
