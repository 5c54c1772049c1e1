"""A profile: settings for one topology, as a TOML file that can be read and edited.

What a user sets, in the environment or in files of UCX and UCC, has priority over a profile. A profile has
priority over the defaults. UCC and UCX get it as variables that exist only while they start (`applied`),
because they read some options only from variables.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ucc import _misspelt

if TYPE_CHECKING:
    from torch_ucc.topology.job import Job

FORMAT = 1
VARIABLE = "TORCH_UCC_PROFILE"

# What a profile may say to UCX and UCC, without UCX_ and UCC_: what is about speed, and alike on all ranks.
UCX_OPTIONS = (
    "TLS",
    "RNDV_THRESH",
    "RNDV_SCHEME",
    "RNDV_FRAG_SIZE",
    "ZCOPY_THRESH",
    "BCOPY_THRESH",
    "MAX_EAGER_RAILS",
    "MAX_RNDV_RAILS",
)
UCC_OPTIONS = (
    "CLS",
    "TL_UCP_TUNE",
    "TL_UCP_NPOLLS",
    "TL_UCP_ALLGATHER_KN_RADIX",
    "TL_UCP_ALLREDUCE_KN_RADIX",
    "TL_UCP_ALLREDUCE_SRA_KN_PIPELINE",
    "TL_UCP_ALLREDUCE_SRA_KN_RADIX",
    "TL_UCP_BARRIER_KN_RADIX",
    "TL_UCP_BCAST_KN_RADIX",
    "TL_UCP_BCAST_SAG_KN_RADIX",
    "TL_UCP_REDUCE_KN_RADIX",
    "TL_UCP_REDUCE_SCATTER_KN_RADIX",
    "TL_UCP_REDUCE_SCATTER_RING_BIDIRECTIONAL",
    "TL_UCP_REDUCE_SRG_KN_RADIX",
)

Values = dict[str, dict[str, str]]  # section -> option -> value

SECTIONS = ("settings", "ucx", "ucc")
_TOPOLOGY = {
    "hosts": "hosts",
    "ranks_per_host": "ranks per host",
    "cores": "usable cores",
    "cpu": "CPU",
    "cma": "whether a process may copy from another's memory",
    "network": "network between hosts",
    "ucx": "UCX",
    "ucc": "UCC",
}
"""The facts that decide which choices are good, with their names in words. A profile has all of them."""


@dataclass(frozen=True)
class Profile:
    """A profile. `topology` is what it was made for, and `path` the file that it came from."""

    path: str
    topology: Mapping[str, Any]
    values: Values = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of this profile as a source of settings."""
        return f"profile {self.path}"

    def section(self, name: str) -> Mapping[str, str]:
        return self.values.get(name, {})


def read(path: str) -> Profile:
    """Return the profile in a file. Raises ValueError that names the file and what is wrong in it."""
    try:
        return parse(Path(path).read_text(), path)
    except OSError as error:
        raise ValueError(f"{VARIABLE}={path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{VARIABLE}={path}: {error}") from None


def parse(text: str, path: str = "") -> Profile:
    """Return the profile in `text`. Raises ValueError. `config` checks the section [settings] later."""
    data = _toml(text)
    if data.pop("format", None) != FORMAT:
        raise ValueError(
            f"the file is not a profile that this version of `torch-ucc tune` wrote (format = {FORMAT})"
        )
    refuse_unknown(data, ("topology", *SECTIONS), "section")
    if any(not isinstance(section, dict) for section in data.values()):
        raise ValueError(
            "topology, settings, ucx and ucc are sections: write, for example, [ucx], and NAME = VALUE below"
        )
    topology = data.get("topology", {})
    refuse_unknown(topology, _TOPOLOGY, "part of the topology")
    if missing := [name for name in _TOPOLOGY if name not in topology]:
        raise ValueError(
            f"[topology] lacks {', '.join(missing)}, so it is not known which jobs the profile fits"
        )
    refuse_unknown(data.get("ucx", {}), UCX_OPTIONS, "option of [ucx]")
    refuse_unknown(data.get("ucc", {}), UCC_OPTIONS, "option of [ucc]")
    values = {
        section: {name: _text(section, name, value) for name, value in data[section].items()}
        for section in SECTIONS
        if section in data
    }
    return Profile(path, topology, values)


def _toml(text: str) -> dict[str, Any]:
    library: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: dict[str, Any] = library.loads(text)
    except ValueError as error:
        raise ValueError(f"the file is not TOML: {error}") from None
    return data


def refuse_unknown(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise ValueError, with a suggestion, for the first name that is not known."""
    known = list(known)
    for name in names:
        if name not in known:
            meant = _misspelt.nearest(name, known)
            hint = f"did you mean {meant}?" if meant else "known are " + ", ".join(known)
            raise ValueError(f"{name} is not a known {what}: {hint}")


def _text(section: str, name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f'[{section}] {name} = {value!r} is not a text or a number, such as "64k" or 4')
    return str(value)


def variables(profile: Profile, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that pass the profile to UCC and UCX.

    A name that the user has set, in the environment or in a file that UCX or UCC reads, is left out. Names
    for UCX have the prefix `UCC_UCX_`, which UCC and torch-ucc read before `UCX_`. Other users of UCX do not
    read it.
    """
    from torch_ucc.topology.user import in_files

    found = {}
    said = {*environment, *in_files(environment)}
    for name, value in profile.section("ucx").items():
        if not {f"UCC_UCX_{name}", f"UCX_{name}"} & said:
            found[f"UCC_UCX_{name}"] = value
    for name, value in profile.section("ucc").items():
        # UCC takes a short name for that of all its components.
        if not {f"UCC_{name}", f"UCC_{name.removeprefix('TL_UCP_')}"} & said:
            found[f"UCC_{name}"] = value
    return found


@contextlib.contextmanager
def applied(names: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for the `with` block, in which a library reads its configuration."""
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)


def topology_of(job: Job) -> dict[str, Any]:
    """Return the topology that a profile for this job has. A fact that differs between hosts is a list."""
    from torch_ucc.topology.devices import link_layer
    from torch_ucc.topology.transports import why_no_cma

    several = len(job.hosts) > 1
    where = range(len(job.hosts))
    return {
        "hosts": len(job.hosts),
        "ranks_per_host": _of_each([len(job.on(host)) for host in where]),
        "cores": _of_each([job.cores(host) for host in where]),
        "cpu": _of_each([host.cpu.model for host in job.hosts]),
        "cma": _of_each([not why_no_cma(host) for host in job.hosts]),
        "network": (link_layer(job.hosts) or "TCP") if several else "none",
        "ucx": _of_each([host.ucx.version for host in job.hosts]),
        "ucc": _of_each([host.ucc.version for host in job.hosts]),
    }


def _of_each(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else values


def differences(made_for: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return, in words, the differences between the topology of a profile and that of a job."""
    return [
        f"{words}: {made_for[name]} in the profile, {here[name]} in this job"
        for name, words in _TOPOLOGY.items()
        if made_for[name] != here[name]
    ]


def refusal(profile: Profile, job: Job) -> str:
    """Return why the profile must not be applied to this job; empty if it fits."""
    differ = differences(profile.topology, topology_of(job))
    if not differ:
        return ""
    return (
        f"{VARIABLE}={profile.path} was made for another topology ({'; '.join(differ)}). Unset "
        f"{VARIABLE}, or make a profile for this job: torchrun ... -m torch_ucc tune --output FILE"
    )


def as_toml(profile: Profile, head: Sequence[str], notes: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """Return the text of the file. `notes` has, by section and option, lines that say why."""
    lines = [*(f"# {line}".rstrip() for line in head), f"format = {FORMAT}", "", "[topology]"]
    lines += [f"{name} = {_literal(value)}" for name, value in profile.topology.items()]
    for section in SECTIONS:
        values = profile.section(section)
        lines += ["", f"[{section}]"] if values else []
        for name, value in values.items():
            lines += [f"# {note}" for note in notes.get((section, name), ())]
            lines.append(f"{name} = {_literal(value)}")
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
