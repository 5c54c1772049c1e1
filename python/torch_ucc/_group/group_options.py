"""What a user sets for one group: `Options(ucc={...}, ucx={...})`, checked before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch_ucc._native import extension

Named = list[tuple[str, str]]
Both = tuple[Named, Named]
"""Those of UCX and those of UCC's context."""

_OF_THE_PROCESS = re.compile(r"^(TLS|LOG_\w+|MEM_\w+|HANDLE_ERRORS|ERROR_\w+|DEBUG_\w+|STATS_\w+|VFS_\w+)$")
"""Of UCX: there is one of each in a process; and of what may reach whom the plan must know."""


def checked(compiled: Any, options: Any) -> Both:
    """Those of `options`, sorted. Raises ValueError that names the first that cannot hold for one group, and
    why."""
    for library, values in (("UCC", options.ucc), ("UCX", options.ucx)):
        for name, value in values.items():
            if why := _why_not(compiled, library, name, value):
                raise ValueError(f"Options({library.lower()}={{{name!r}: {value!r}}}): {why}")
    return sorted(options.ucx.items()), sorted(options.ucc.items())


def _why_not(compiled: Any, library: str, name: str, value: str) -> str:
    variable = f"{library}_{name}"
    if name.startswith(f"{library}_"):
        return f"write the name without {library}_"
    if not value.isprintable():
        return "the value has characters that cannot be printed"
    if library == "UCX" and _OF_THE_PROCESS.match(name):
        return f"it holds for the whole process: set {variable} in the environment, before the first group"
    check: Callable[[Named], None] = (
        compiled.check_ucc_options if library == "UCC" else compiled.check_ucx_options
    )
    try:
        check([(name, value)])
    except RuntimeError as error:
        where = "a UCC context" if library == "UCC" else "a UCX worker"
        return (
            f"{where} refuses it ({error}). If {library} has this option, it holds for the whole process: "
            "set "
            f"{variable} in the environment, before the first group"
        )
    return ""


def told(planned: Both, own: Both) -> Both:
    """What is set decides over the plan. Devices are those of both libraries."""
    ucx, ucc = map(dict, own)
    devices = {name: value for name, value in ucx.items() if name == "NET_DEVICES"}
    planned_ucx, planned_ucc = map(dict, planned)
    return list({**planned_ucx, **ucx}.items()), list({**planned_ucc, **devices, **ucc}.items())


def of(group: Any) -> Both:
    """Those that hold for the group, if it is one of ours."""
    backend = extension.backend_of(group)
    if backend is None:
        return [], []
    return sorted(backend.options.ucx.items()), sorted(backend.options.ucc.items())


def shown(planned: Both, own: Both) -> dict[str, dict[str, str]]:
    """By variable, for people: what the libraries are told, and by whom."""
    return {
        f"{library}_{name}": {
            "value": value,
            "source": "Options" if (name, value) in [*own[0], *own[1]] else "plan",
        }
        for library, options in zip(("UCX", "UCC"), told(planned, own), strict=True)
        for name, value in options
    }
