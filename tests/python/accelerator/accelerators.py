"""The accelerator that the tests here run on: one made for tests, or a real one.

The fake one (tests/accelerator) has two devices, whose streams are threads that run everything late, at
random; whose memory the host cannot touch; and which fills what was freed with a pattern and counts who
writes there. With it a test can also hold a stream up. TESTED_ACCELERATOR=cuda asks for a real one.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build" / f"fake-accelerator-{torch.__version__}"
TYPE = os.environ.get("TESTED_ACCELERATOR", "privateuseone")
IS_FAKE = TYPE == "privateuseone"
only_on_the_fake_one = pytest.mark.skipif(not IS_FAKE, reason="needs a stream that can be held up")


def prepare() -> None:
    """Once, before ranks start."""
    if IS_FAKE:
        _build()


@functools.cache
def _build() -> None:
    """A few seconds where ccache knows the files, else most of a minute."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    source = ROOT / "tests" / "accelerator"
    for command in (
        ["cmake", "-S", source, "-B", BUILD, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"],
        ["cmake", "--build", BUILD, "--parallel", "2"],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            raise RuntimeError(f"the fake accelerator could not be built:\n{done.stdout}\n{done.stderr}")


@functools.cache
def load() -> ctypes.CDLL | None:
    """In each rank, before its first tensor there. What can be done to the fake one; None of a real one."""
    if not IS_FAKE:
        importlib.import_module(f"torch.{TYPE}").init()
        return None
    path = BUILD / "libfake_accelerator.so"
    torch.ops.load_library(path)
    module = types.ModuleType(f"torch.{TYPE}")
    vars(module).update(_of_the_module())
    torch._register_device_module(TYPE, module)
    return ctypes.CDLL(str(path))


def _of_the_module() -> dict[str, Callable[..., object]]:
    """What torch, DDP and FSDP2 ask of the module of a device, as torch.cuda has it."""
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "current_device": torch.accelerator.current_device_index,
        "set_device": torch.accelerator.set_device_index,
        "current_stream": torch.accelerator.current_stream,
        "stream": lambda stream: stream,
        "Stream": lambda priority=0: torch.Stream(device=TYPE),
        "Event": lambda: torch.Event(TYPE),
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
    }


def device(index: int = 0) -> str:
    load()
    return f"{TYPE}:{index}"


def new_stream(index: int = 0) -> torch.Stream:
    return torch.Stream(device=device(index))


def set_longest_delay(microseconds: int) -> None:
    """Of every kernel and copy of the fake one."""
    if fake := load():
        fake.fake_set_delay(microseconds)


def let_arrive(copies: int | None) -> None:
    """So many more copies to pinned memory may end, or any number. The others wait where they are."""
    _fake().fake_let_arrive(-1 if copies is None else copies)


def break_down() -> None:
    """Whoever asks how far a stream is gets an error from now on."""
    _fake().fake_break()


class Gate:
    """Holds a stream of the fake accelerator up until it is opened."""

    def __init__(self, stream: torch.Stream) -> None:
        self._number = _fake().fake_close_gate(stream.device_index, ctypes.c_int64(stream.stream_id))

    def open(self) -> None:
        _fake().fake_open_gate(self._number)


@contextmanager
def held_up(stream: torch.Stream) -> Iterator[None]:
    gate = Gate(stream)
    try:
        yield
    finally:
        gate.open()


@contextmanager
def capturing(stream: torch.Stream) -> Iterator[None]:
    """As if a graph were being captured there."""
    _fake().fake_capture(stream.device_index, ctypes.c_int64(stream.stream_id), 1)
    yield
    _fake().fake_capture(stream.device_index, ctypes.c_int64(stream.stream_id), 0)


def memory_faults() -> int:
    """How often freed memory was written to, once nothing is under way any more."""
    torch.accelerator.synchronize(0)
    if not (fake := load()):
        return 0
    torch.accelerator.synchronize(1)
    return fake.fake_faults()


def _fake() -> ctypes.CDLL:
    fake = load()
    assert fake is not None
    return fake
