"""What can be set, where it comes from, and what it is when nobody says.

The environment, and the profile that it may name, are read once, at the creation of the first group, into
one immutable value that remembers the source of each setting. An unknown TORCH_UCC_ name is an error, as is a
value that cannot be read.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_ucc import _misspelt

if TYPE_CHECKING:
    from torch_ucc.tuning.profile import Profile

PREFIX = "TORCH_UCC_"

# Read by the project's scripts and tools.
OTHER_NAMES = ("TORCH_UCC_BENCH_BUSY", "TORCH_UCC_BENCH_PEERS", "TORCH_UCC_PYTHON")

# Of torch-ucc as it was before: they are no error, and do nothing.
OLD_NAMES = {
    "TORCH_UCC_USE_FUTURE": "every operation has a future",
    "TORCH_UCC_SHARED_COMM": "groups of the same processes always share one UCC context",
    "TORCH_UCC_USE_ALLGATHERV": "all_gather needs no such choice",
    "TORCH_UCC_PROFILING_ENABLE": "torch.profiler records every collective without this variable",
    "TORCH_UCC_ENABLE_HEALTH_CHECK": "creating a group always fails if one of its ranks cannot be reached",
    "TORCH_UCC_ENABLE_COMMS_LOGGER": "torch.profiler records every collective",
    "TORCH_UCC_COMMS_TRACE_OUTPUT_DIR": "the program tells torch.profiler where to write its traces",
}

# UCC and UCX read their own options from the environment and from files. Those that steer how ranks talk must
# be equal on all of them, or they do not understand each other. Those that choose a rank's devices, say
# something of its host's fabric or memory, or what is printed, need not.
_LOCAL = re.compile(
    r"^(UCC_UCX|UCC|UCX)_(LOG_|COLL_TRACE|PROFILE_|STATS_|DEBUG_|VFS_|ERROR_|HANDLE_ERRORS$|WARN_|GDB_"
    r"|MEM_|RCACHE_|IB_|MODULE|HOME$|CONFIG_(FILE|DIR)$|(\w+_)?(NET|SHM|ACC|SELF|SHARP)_DEVICES$)"
)


def duration(text: str) -> timedelta:
    """Raises ValueError that says what is one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m)", text.strip())
    if match is None:
        raise ValueError("a duration such as 200us, 1.5ms, 30s or 5m")
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[match[2]]
    return timedelta(seconds=float(match[1]) * unit)


def size(text: str) -> int:
    """Raises ValueError that says what would be one."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)b?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ValueError("a size in bytes above 0, such as 65536, 512k or 4m")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def _window(text: str) -> int:
    if not re.fullmatch(r"[1-8]", text.strip()):
        raise ValueError("a number from 1 to 8")
    return int(text)


def _switch(text: str) -> bool:
    if text.strip() not in ("0", "1"):
        raise ValueError("0 or 1")
    return text.strip() == "1"


_OF_BLOCKING_WAIT = (
    *("allgather", "allgather_base", "allreduce", "alltoall", "alltoall_base", "broadcast", "gather"),
    *("reduce", "reduce_scatter", "reduce_scatter_base", "scatter", "send", "recv"),
)
"""Earlier versions of torch-ucc accept a list of these names, or "all", or "none"."""


def _blocking(text: str) -> bool:
    """Programs, such as Megatron-LM, set values of earlier versions. A list of operations means all."""
    words = {word.strip() for word in text.lower().split(",")} - {""}
    if words <= {"0"} or words == {"none"}:
        return False
    if words in ({"1"}, {"all"}) or words <= set(_OF_BLOCKING_WAIT):
        return True
    raise ValueError("0, 1, none or all")


def _staged_or(other: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip() not in ("staged", other):
            raise ValueError(f"staged or {other}")
        return text.strip()

    return parse


def _setting(
    default: Any, parse: Callable[[str], Any], help: str, *, agreed: bool = False, native: bool = True
) -> Any:
    """`agreed`: must be equal on all ranks. `native`: a field of the extension's Settings, too."""
    return dataclasses.field(
        default=default, metadata={"parse": parse, "help": help, "agreed": agreed, "native": native}
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of a context. Each is read from TORCH_UCC_ and its name in capitals."""

    spin: timedelta = _setting(
        timedelta(microseconds=200),
        duration,
        "How long a waiting thread polls without a pause. It skips this if a host has more ranks than cores.",
    )
    yield_for: timedelta = _setting(
        timedelta(milliseconds=2),
        duration,
        "How long the thread then polls and yields its core, before it sleeps.",
    )
    pause_min: timedelta = _setting(
        timedelta(microseconds=20),
        duration,
        "How long the first sleep of a waiting thread is. Each further sleep is longer.",
    )
    pause_max: timedelta = _setting(
        timedelta(milliseconds=1),
        duration,
        "How long a waiting thread sleeps at most, if the ranks that it waits for cannot wake it.",
    )
    segment_bytes: int = _setting(
        1 << 20,
        size,
        "Large collectives through UCC are divided into pieces of about this size. "
        "In levels, pieces are twice as large.",
        agreed=True,
    )
    segment_window: int = _setting(
        2,
        _window,
        "How many pieces of an all_reduce, reduce or broadcast without levels are in flight at once.",
        agreed=True,
    )
    cross_check: bool = _setting(
        False, _switch, "Before a collective starts, compare the calls of all ranks.", agreed=True
    )
    nan_check: bool = _setting(
        False,
        _switch,
        "Refuse a call if its data contains a NaN. The check reads all data, which takes time.",
    )
    blocking_wait: bool = _setting(
        False,
        _blocking,
        "1 or `all`: wait() returns only after the results are on the accelerator. "
        "0 or `none`: it returns earlier.",
    )
    device_p2p: str = _setting(
        "staged",
        _staged_or("direct"),
        "How messages of tensors on accelerators are sent: `staged` through host memory, "
        "or `direct` from device memory.",
        native=False,
    )
    device_collectives: str = _setting(
        "staged",
        _staged_or("native"),
        "How collectives of tensors on accelerators work: `staged` through host memory, "
        "or `native` in device memory.",
        agreed=True,
        native=False,
    )
    host_path: bool = _setting(
        True,
        _switch,
        "Ranks of one host communicate through memory that they share. 0: through UCC and UCX.",
        agreed=True,
    )
    levels_from: int = _setting(
        1,
        size,
        "Collectives of this size or more go in levels between hosts with several ranks. "
        "A barrier has 1 byte.",
        agreed=True,
    )
    life_lines: bool = _setting(
        True,
        _switch,
        "Keep TCP connections between hosts. Over these, ranks report at once that a rank has ended.",
        agreed=True,
    )
    close_timeout: timedelta = _setting(
        timedelta(seconds=5),
        duration,
        "How long a rank that closes a group waits for the other ranks to close it.",
    )

    as_default: bool = _setting(
        False,
        _switch,
        "Use ucc for CPU tensors if init_process_group() names no backend. `import torch` reads this.",
        native=False,
    )
    replace_gloo: bool = _setting(
        False,
        _switch,
        "Create the groups that a program asks gloo for: docs/frameworks.md. `import torch` reads this.",
        native=False,
    )

    trace: str = _setting(
        "",
        str,
        "A folder. Each rank writes a trace of all its operations there when its process ends.",
        native=False,
    )
    trace_sites: bool = _setting(
        False,
        _switch,
        "Record the Python stack of each call. A call then takes some microseconds longer.",
        native=False,
    )
    trace_dump: str = _setting(
        "",
        str,
        "A folder. A rank writes its last operations there when an operation fails.",
        native=False,
    )
    trace_signal: bool = _setting(
        False,
        _switch,
        "Also write the file of TORCH_UCC_TRACE_DUMP when the process receives SIGUSR2.",
        native=False,
    )
    profile: str = _setting(
        "",
        str,
        "A file that `torch-ucc tune` has written for the topology of the job: docs/tuning.md.",
        native=False,
    )

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    """Where each setting that is not a default came from."""

    tuned: Profile | None = dataclasses.field(default=None, compare=False)
    """What `profile` names."""

    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    """What the profile says to UCC and UCX, as variables that they read when they start."""

    def agreed(self, environment: Mapping[str, str]) -> list[tuple[str, str]]:
        """Name and value of everything that must be equal on all ranks. `environment`: also of files."""
        agreed = (field.name for field in _fields() if field.metadata["agreed"])
        ours = [(name, str(getattr(self, name))) for name in agreed]
        libraries = [
            (name, value)
            for name, value in environment.items()
            if name.startswith(("UCC_", "UCX_")) and not _LOCAL.match(name)
        ]
        return ours + sorted(libraries)


def names() -> list[str]:
    """Of all settings."""
    return [field.name for field in _fields()]


def _fields() -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(Config) if field.metadata]


def from_environment(environment: Mapping[str, str] = os.environ) -> Config:
    """Raises ValueError that names the variable, its value and what is allowed."""
    known = {PREFIX + field.name.upper(): field for field in _fields()}
    tuned = _profile(environment)
    values, sources = _of_profile(tuned) if tuned else ({}, {})
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in OTHER_NAMES or name in OLD_NAMES:
            continue
        field = known.get(name)
        if field is None:
            raise ValueError(_unknown(name, list(known)))
        values[field.name] = _value(field, name, text)
        sources[field.name] = f"environment variable {name}"
    config = Config(**values, sources=sources, tuned=tuned, libraries=_variables(tuned, environment))
    if config.pause_min > config.pause_max:
        raise ValueError(f"{PREFIX}PAUSE_MIN is longer than {PREFIX}PAUSE_MAX")
    if config.trace_signal and not config.trace_dump:
        raise ValueError(f"{PREFIX}TRACE_SIGNAL=1 needs {PREFIX}TRACE_DUMP, the directory to write to")
    return config


def _value(field: dataclasses.Field[Any], name: str, text: str) -> Any:
    try:
        return field.metadata["parse"](text)
    except ValueError as error:
        raise ValueError(f"{name}={text!r} is not {error}") from None


def _profile(environment: Mapping[str, str]) -> Profile | None:
    if not (path := environment.get(f"{PREFIX}PROFILE")):
        return None
    from torch_ucc.tuning import profile

    return profile.read(path)


def _of_profile(tuned: Profile) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings and their sources."""
    from torch_ucc.tuning.profile import refuse_unknown

    settable = {field.name: field for field in _fields() if field.name != "profile"}
    try:
        refuse_unknown(tuned.section("settings"), settable, "option of [settings]")
        values = {
            name: _value(settable[name], f"[settings] {name}", text)
            for name, text in tuned.section("settings").items()
        }
    except ValueError as error:
        raise ValueError(f"{PREFIX}PROFILE={tuned.path}: {error}") from None
    return values, dict.fromkeys(values, tuned.name)


def _variables(tuned: Profile | None, environment: Mapping[str, str]) -> dict[str, str]:
    if tuned is None:
        return {}
    from torch_ucc.tuning.profile import variables

    return variables(tuned, environment)


@functools.cache
def in_force() -> Config:
    """Those of this process, read at its first group and then fixed."""
    for name in sorted(OLD_NAMES.keys() & os.environ.keys()):
        warnings.warn(f"{name} has no effect any more: {OLD_NAMES[name]}", RuntimeWarning, stacklevel=3)
    return from_environment()


class Row(NamedTuple):
    """A setting as it is shown: `value` in the form in which it can be set."""

    variable: str
    value: str
    source: str
    help: str


def listing(environment: Mapping[str, str] = os.environ) -> list[Row]:
    """All of ours, then what is set of UCC's and UCX's. Raises ValueError as from_environment()."""
    config = from_environment(environment)
    ours = [
        Row(
            PREFIX + field.name.upper(),
            as_text(field.name, getattr(config, field.name)),
            config.sources.get(field.name, "default"),
            field.metadata["help"],
        )
        for field in _fields()
    ]
    old = [
        Row(name, environment[name], "environment, has no effect any more", OLD_NAMES[name])
        for name in sorted(OLD_NAMES.keys() & environment.keys())
    ]
    others = [
        Row(name, value, "environment", "")
        for name, value in sorted(environment.items())
        if name.startswith(("UCC_", "UCX_"))
    ]
    if config.tuned:
        others += [Row(name, value, config.tuned.name, "") for name, value in config.libraries.items()]
    return ours + old + others


def as_text(name: str, value: Any) -> str:
    """Of the setting `name`: what would set it to this value."""
    if isinstance(value, timedelta):
        microseconds = value // timedelta(microseconds=1)
        for unit, size in (("s", 1_000_000), ("ms", 1_000)):
            if microseconds and microseconds % size == 0:
                return f"{microseconds // size}{unit}"
        return f"{microseconds}us"
    if isinstance(value, bool):
        return str(int(value))
    if name.endswith(("_bytes", "_from")):
        for unit, shift in (("g", 30), ("m", 20), ("k", 10)):
            if value % (1 << shift) == 0:
                return f"{value >> shift}{unit}"
    return str(value)


def reference() -> str:
    """docs/settings.md."""
    defaults = Config()
    rows = [
        f"| `{PREFIX}{field.name.upper()}` | `{as_text(field.name, getattr(defaults, field.name))}` "
        f"| {'yes' if field.metadata['agreed'] else ''} | {field.metadata['help']} |"
        for field in _fields()
    ]
    old = [f"| `{name}` | {why} |" for name, why in OLD_NAMES.items()]
    return "\n".join([_REFERENCE_HEAD, *rows, _REFERENCE_MIDDLE, *old, ""])


_REFERENCE_HEAD = """\
# Settings

After this page you know what each environment variable does. `torch-ucc config` prints the values that are
in force in your shell, and where each comes from. `torch-ucc config --reference` writes this page from
`python/torch_ucc/config.py`, so do not edit it.

A process reads the settings when it creates its first group. They do not change afterwards. A variable of
the environment has priority over the profile that `TORCH_UCC_PROFILE` names ([tuning](tuning.md)). The
profile has priority over the default. An unknown name that begins with `TORCH_UCC_` is an error. A value with
a wrong form is an error, too. These are the forms of durations, sizes and switches:

| | examples |
|---|---|
| duration | `200us`, `1.5ms`, `30s`, `5m` |
| size | `65536`, `512k`, `4m`, `1g` |
| switch | `0`, `1` |

The ranks of a group compare the settings that are marked "same on all ranks", and the variables of UCC and
UCX that decide how ranks communicate. If they differ, no rank can create the group, and the error names the
difference. Variables that select devices or memory of one host, or what is printed, may differ.

| variable | default | same on all ranks | |
|---|---|---|---|"""

_REFERENCE_MIDDLE = """
To use another UCC or UCX than that of the package, set `UCC_HOME` or `UCX_HOME` to the prefix under which it
is installed.

UCC and UCX read their own variables, `UCC_*` and `UCX_*`. What you set there has priority over what torch_ucc
chooses. `torch-ucc plan` shows the choices. A name such as `UCX_TLS` has an effect on all users of UCX in the
process. A name such as `UCC_UCX_TLS` has an effect on torch_ucc and UCC only. UCX reads the options of its
transports, for example `UCX_TCP_RX_SEG_SIZE`, only by the name without `UCC_`.

When UCX is loaded, it replaces memory functions of the C library. UCX then learns when the program frees
memory that is registered with a device. The replacement takes time at the start of each process. If the host
has no such device (InfiniBand, XPMEM, KNEM or a GPU), torch_ucc therefore sets `UCX_MEM_MMAP_HOOK_MODE=none`
while UCX is loaded. It does not do this if you set this variable, `UCX_MEM_EVENTS` or `UCX_RCACHE_ENABLE`. On
such a host, UCX does not start with `RCACHE_ENABLE=y` in the `Options` of a group.

Variables of earlier versions of torch-ucc have no effect. They cause a warning, and no error:

| variable | |
|---|---|"""


def _unknown(name: str, known: list[str]) -> str:
    short = [other.removeprefix(PREFIX) for other in known]
    meant = _misspelt.nearest(name.removeprefix(PREFIX), short)
    hint = f"did you mean {PREFIX}{meant}?" if meant else "known are " + ", ".join(sorted(known))
    return f"{name} is not a setting of torch_ucc: {hint}"


def native(config: Config, settings: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """Fills `settings`, a torch_ucc._core.Settings, and returns it."""
    for field in (field for field in _fields() if field.metadata["native"]):
        setattr(settings, field.name, getattr(config, field.name))
    if config.device_p2p == "direct" or config.device_collectives == "native":
        from torch_ucc._native import device_memory

        known = list(device_memory.OF_DEVICES.items())
        settings.direct = known if config.device_p2p == "direct" else []
        settings.native = known if config.device_collectives == "native" else []
    from torch_ucc.topology.user import in_files

    settings.agreed = config.agreed({**in_files(environment), **environment, **config.libraries})
    return settings
