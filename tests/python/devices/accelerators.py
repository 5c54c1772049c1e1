"""The accelerator that the tests here run on: one made for tests, or a real one.

The fake one (tests/fake_device) has two devices, whose streams are threads that run everything late, at
random; whose memory the host cannot touch; and which fills what was freed with a pattern and counts who
writes there. TESTED_ACCELERATOR=cuda asks for a real one. A test can hold streams up on both.
"""

from __future__ import annotations

import ctypes
import datetime
import fcntl
import functools
import importlib
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ucc._native import device_memory

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build" / f"fake-device-{torch.__version__}"
TYPE = os.environ.get("TESTED_ACCELERATOR", "privateuseone")
IS_FAKE = TYPE == "privateuseone"
RANKS = (2, 3) if IS_FAKE else (2, 4)
"""How many share a device where everything is tested."""
MANY = 1000 if IS_FAKE else 8 << 20
"""Elements of a tensor whose copies are late: on a real one they are if it is large."""

needs_gates = pytest.mark.skipif(
    TYPE not in ("privateuseone", "cuda"), reason=f"no stream of {TYPE} can be held up"
)
only_fake = pytest.mark.skipif(not IS_FAKE, reason="a real UCX or UCC is not asked how it was called")


def prepare() -> None:
    """Once, before ranks start."""
    if IS_FAKE:
        _build()
    else:  # else a stream may share its queue with one that is held up
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def count() -> int:
    """Devices of this machine. Needs no load()."""
    return 2 if IS_FAKE else torch.accelerator.device_count()


@functools.cache
def _build() -> None:
    """A few seconds where ccache knows the files, else most of a minute."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    source = ROOT / "tests" / "fake_device"
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:  # of several test runs that share a build folder
        fcntl.flock(lock, fcntl.LOCK_EX)
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


def show_to_ucx() -> None:
    """In each rank, before its first group, where UCX or UCC works in the memory of devices. Of the fake one
    they see it as the host's."""
    if fake := load():
        fake.fake_show()
        ctypes.CDLL(str(BUILD / "libfake_accelerator.so"), ctypes.RTLD_GLOBAL)  # counts, from before UCX
        device_memory.OF_DEVICES[TYPE] = "host"


def started(check: Callable[..., Any], *args: Any) -> Any:
    """The check, in a group for whose tensors UCX and UCC may work in the memory of devices."""
    show_to_ucx()
    dist.init_process_group("ucc", timeout=datetime.timedelta(seconds=60))
    return check(*args)


def posted(index: int = 0) -> int:
    """Messages from or to memory of the fake devices, posted where this one was current."""
    return int(_fake().fake_posted(index))


def driven(index: int = 0) -> int:
    """How often UCX was driven where this one was current, since the last such receive was posted."""
    return int(_fake().fake_driven(index))


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
    """Whoever records an event or asks for one gets an error from now on."""
    _fake().fake_break()


class Gate:
    """Holds a stream up until it is opened."""

    def __init__(self, stream: torch.Stream) -> None:
        self.open: Callable[[], object]
        if IS_FAKE:
            number = _fake().fake_close_gate(stream.device_index, ctypes.c_int64(stream.stream_id))
            self.open = functools.partial(_fake().fake_open_gate, number)
        else:
            self.open = _hold_up(_of_cuda(stream))


_words: list[torch.Tensor] = []  # that a stream may still look at


def _hold_up(stream: torch.cuda.Stream) -> Callable[[], object]:
    """The driver can have a stream wait until a word of the host's memory is 1."""
    word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    _words.append(word)
    with torch.cuda.stream(stream):  # torch keeps this memory for it: for new one the driver may wait for all
        torch.empty(1, device=stream.device)
    wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
    wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
    equal = 1
    if error := wait(stream.cuda_stream, word.data_ptr(), 1, equal):
        raise RuntimeError(f"cuStreamWaitValue32: error {error} of CUDA")
    return functools.partial(word.fill_, 1)


def _of_cuda(stream: torch.Stream) -> torch.cuda.Stream:
    return torch.cuda.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


@contextmanager
def held_up(stream: torch.Stream) -> Iterator[None]:
    gate = Gate(stream)
    try:
        yield
    finally:
        gate.open()


@contextmanager
def capturing(stream: torch.Stream) -> Iterator[None]:
    """A graph is being captured there; as if, on the fake one."""
    if not IS_FAKE:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=_of_cuda(stream)):
            yield
        return
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
