"""What users set that decides over the plan: in the environment, in files of UCX and UCC, or by a profile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

PROFILE = "profile "
"""Before the name of what a profile says: the environment decides over it."""

TLS = ("UCC_UCX_TLS", "UCX_TLS", f"{PROFILE}UCC_UCX_TLS")
NET_DEVICES = ("UCC_TL_UCP_NET_DEVICES", "UCC_NET_DEVICES", "UCC_UCX_NET_DEVICES", "UCX_NET_DEVICES")
PPN = ("UCC_ESTIMATED_NUM_PPN",)
CLS = ("UCC_CLS", f"{PROFILE}UCC_CLS")
TUNE = ("UCC_TL_UCP_TUNE", "UCC_TUNE", f"{PROFILE}UCC_TL_UCP_TUNE")
"""Variables for one thing: of those that are set, the first decides."""

TCP_SEGMENTS = ("UCX_TCP_RX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE")
RAILS = tuple(
    f"{prefix}MAX_{kind}_RAILS"
    for kind in ("EAGER", "RNDV")
    for prefix in ("UCC_UCX_", "UCX_", f"{PROFILE}UCC_UCX_")
)
RECEIVE_BUFFERS = ("UCX_SYSV_RX_BUFS_GROW", "UCX_POSIX_RX_BUFS_GROW", "UCX_MM_RX_BUFS_GROW")
"""Where one of these is set, nothing is said of the others either."""

HOST_PATH = ("TORCH_UCC_HOST_PATH",)
LEVELS_FROM = ("TORCH_UCC_LEVELS_FROM",)
DEVICE_P2P = ("TORCH_UCC_DEVICE_P2P",)
DEVICE_COLLECTIVES = ("TORCH_UCC_DEVICE_COLLECTIVES",)

LOOPBACK = "lo"
"""The network device of ranks that are all on one host."""


def tls(*, cma: bool, tcp: bool, sysv: bool | None = None) -> tuple[str, str]:
    """What UCX is told to go without some of these transports, and without posix or `sysv` if said."""
    used = {"cma": cma, "posix": sysv is not True, "sysv": sysv is not False, "tcp": tcp}
    left_out = [name for name, is_used in used.items() if not is_used]
    return "TLS", "^" + ",".join(left_out) if left_out else "all"


def receive_buffers(*, sysv: bool) -> tuple[str, str]:
    """What UCX is told to fill the queue of shared memory with: its 256 entries take a buffer each, and one
    is at hand. By itself it makes 512, and more when they are used up, as it does after these."""
    return ("SYSV" if sysv else "POSIX") + "_RX_BUFS_GROW", "257"


_ALL = (
    *TLS,
    *NET_DEVICES,
    *PPN,
    *CLS,
    *TUNE,
    *TCP_SEGMENTS,
    *RAILS,
    *RECEIVE_BUFFERS,
    *HOST_PATH,
    *LEVELS_FROM,
    *DEVICE_P2P,
    *DEVICE_COLLECTIVES,
)
SETTINGS = tuple(name for name in _ALL if not name.startswith(PROFILE))


def settings_here(
    environment: Mapping[str, str] = os.environ, profile: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Those that are set. `profile`: what one says to the libraries, as variables."""
    told = {f"{PROFILE}{name}": value for name, value in (profile or {}).items()}
    found = {**in_files(environment), **environment, **told}
    return {name: found[name] for name in _ALL if name in found}


def in_files(environment: Mapping[str, str]) -> dict[str, str]:
    """What those files named ucx.conf say that UCX reads wherever it comes from, its user's and the folder's:
    the later decides. It reads two of its own installation before them. And what UCC reads: the file that
    UCC_CONFIG_FILE names, or ucc.conf of its user.

    A file that cannot be read is left to UCX, which says so. Sections are for some processors only.
    """
    places = [environment[name] for name in ("HOME", "UCX_CONFIG_DIR") if name in environment]
    of_ucc = Path(environment.get("UCC_CONFIG_FILE") or Path(environment.get("HOME", ""), "ucc.conf"))
    named = [*(Path(place, "ucx.conf") for place in (*places, ".")), of_ucc]
    files = [file for file in named if os.access(file, os.R_OK)]
    if not files:
        return {}
    import configparser

    parser = configparser.RawConfigParser(strict=False, inline_comment_prefixes=(";",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    for file in files:
        with contextlib.suppress(OSError, UnicodeError, configparser.Error):
            parser.read_string(f"[all]\n{file.read_text()}")
    return dict(parser["all"]) if "all" in parser else {}


def by_whom(said: str) -> tuple[str, str]:
    """Of "UCX_TLS=tcp", which `plan` made of a setting: who set it, as a reason, and how."""
    if said.startswith(PROFILE):
        return "set by the profile", said.removeprefix(PROFILE)
    return "set by the user", said


def chosen(settings: Mapping[str, str], names: Sequence[str]) -> tuple[str, str] | None:
    """Of these variables the one that decides, and its value."""
    return next(((name, settings[name]) for name in names if name in settings), None)
