"""Where UCC and UCX are, and loading them before the extension is.

Torch-free and importable by path: `ci/setup` and CMake ask this file too, so that the search is written once.
As a program it prints what it found: `python loading.py --build CHECKOUT [--json]`.

The order: UCC_HOME / UCX_HOME; HPC-X; a conda prefix; then
- for a build: the system, and last the libucx wheel or what `ci/provision-ucc` made;
- for a run: the prefix that the extension was built with, the copy that came with the wheel, and last the
  system, whose age is unknown. HPC-X and conda count only where active: being installed is nobody's choice.
A set UCC_HOME or UCX_HOME that holds no library is an error, never a reason to look further.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple


class Kit(NamedTuple):
    """What makes a prefix one of UCC or of UCX. `sonames` in the order of loading, the main one last."""

    name: str
    sonames: tuple[str, ...]
    header: str
    version_header: str
    version_pattern: str
    pkg_config: str


UCC = Kit(
    "UCC",
    ("libucc.so.1",),
    "ucc/api/ucc.h",
    "ucc/api/ucc_version.h",
    r'UCC_VERSION_STRING\s+"([^"]+)"',
    "ucc",
)
UCX = Kit(
    "UCX",
    # libucm and libucs need each other; libucs names libucm and so brings it.
    ("libucs.so.0", "libuct.so.0", "libucp.so.0"),
    "ucp/api/ucp.h",
    "ucp/api/ucp_version.h",
    r"UCP_API_MAJOR\s+(\d+)\s+#define UCP_API_MINOR\s+(\d+)",
    "ucx",
)


class LibraryError(ImportError):
    """UCC or UCX cannot be found or loaded. The message says where was looked and what to do."""


class Found(NamedTuple):
    """A library of `name` under `prefix`; `why` it was looked for there. No `include`: no headers."""

    name: str
    kind: str
    prefix: Path
    why: str
    library: Path
    include: Path | None
    version: str | None

    def __str__(self) -> str:
        return f"{self.name} {self.version or '(version unknown)'} from {self.prefix} ({self.why})"


class Loaded(NamedTuple):
    """A library that this process runs: `version` is its own word, `path` the file it was mapped from."""

    name: str
    kind: str
    path: Path
    why: str
    version: str


class _Place(NamedTuple):
    """Somewhere to look. Without a prefix there was nothing to look at, and `why` says so."""

    kind: str
    prefix: Path | None
    why: str


def find_ucc(checkout: Path | None = None, built_with: str = "") -> Found:
    """The UCC to use: to build the project in `checkout`, or to run, when None. Raises LibraryError."""
    return _first(UCC, checkout, built_with)


def find_ucx(checkout: Path | None = None, built_with: str = "") -> Found:
    """The UCX to use, as find_ucc()."""
    return _first(UCX, checkout, built_with)


def all_found(kit: Kit, checkout: Path | None = None, built_with: str = "") -> Iterator[Found]:
    """Every one there is, the one to use first; later places are looked at only when asked for."""
    for place in _places(kit, checkout, built_with):
        one = _inspect(kit, place)
        if one is not None and (checkout is None or one.include is not None):
            yield one
        elif place.kind == "explicit" and place.prefix is not None:
            missing = kit.sonames[-1] if one is None else kit.header
            raise LibraryError(
                f"{kit.name}_HOME is {place.prefix}, but there is no {missing} in it; correct or unset "
                f"{kit.name}_HOME."
            )


_lock = threading.Lock()
_loaded: dict[str, Loaded] = {}


def preload(
    ucc_built_with: str = "", ucx_built_with: str = "", said: Container[str] = os.environ
) -> tuple[Loaded, ...]:
    """Load UCX, then UCC, so that the extension's own requests for their sonames resolve to these.

    `said`: the variables that UCX's user has set, here or in a file.
    What the process has loaded already is kept: two copies of UCX in one process corrupt each other.
    Idempotent, thread-safe. Raises LibraryError.
    """
    with _lock:
        if not _loaded:
            with _without_memory_hooks(said):
                ucx = _load(UCX, ucx_built_with)
            ucc = _load(UCC, ucc_built_with)
            _loaded.update(UCX=ucx, UCC=ucc)
    return loaded()


def loaded() -> tuple[Loaded, ...]:
    """What preload() settled on; empty before."""
    return tuple(_loaded.values())


def _first(kit: Kit, checkout: Path | None, built_with: str) -> Found:
    found = next(all_found(kit, checkout, built_with), None)
    if found is not None:
        return found
    looked = "; ".join(place.why for place in _places(kit, checkout, built_with))
    advice = "run ci/provision-ucc, or install UCC and set UCC_HOME" if kit is UCC and checkout else None
    advice = (
        advice
        or f"install {'libucx-cu12 with pip' if kit is UCX else 'UCC'}, or set {kit.name}_HOME to its folder"
    )
    what = "with headers " if checkout else ""
    raise LibraryError(f"No {kit.name} {what}was found (looked at: {looked}): {advice}.")


def _places(kit: Kit, checkout: Path | None, built_with: str) -> Iterator[_Place]:
    yield _from_environment("explicit", f"{kit.name}_HOME")
    yield _from_environment("hpcx", f"HPCX_{kit.name}_DIR")
    yield _from_environment("hpcx", "HPCX_DIR", kit.name.lower())
    if checkout is not None:
        yield from _unpacked_hpcx(kit)
        yield _from_environment("conda", "CONDA_PREFIX")
    elif (Path(sys.prefix) / "conda-meta").is_dir():
        yield _Place("conda", Path(sys.prefix), "this Python's conda environment")
    if checkout is None:
        if built_with:
            yield _Place("build", Path(built_with), "the extension was built with it")
        yield _carried(kit)
        yield from _system(kit)
    else:
        yield from _system(kit)
        yield _carried(kit) if kit is UCX else _Place("provisioned", checkout / ".deps" / "ucc", ".deps/ucc")


def _from_environment(kind: str, variable: str, below: str = "") -> _Place:
    value = os.environ.get(variable)
    if not value:
        return _Place(kind, None, f"{variable} is not set")
    return _Place(kind, Path(value) / below, f"{variable} is set")


def _unpacked_hpcx(kit: Kit) -> Iterator[_Place]:
    """Where HPC-X is unpacked to by habit; the newest first."""
    for prefix in sorted(Path("/opt").glob("hpcx*/"), reverse=True):
        yield _Place("hpcx", prefix / kit.name.lower(), f"HPC-X in {prefix}")


def _carried(kit: Kit) -> _Place:
    """What came from PyPI: the libucx wheel, or the UCC inside ours."""
    if kit is UCC:
        return _Place(
            "bundled", Path(__file__).resolve().parent.parent / "_ucc", "the copy in the torch-ucc wheel"
        )
    spec = importlib.util.find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return _Place("wheel", None, "the libucx wheel is not installed")
    return _Place("wheel", Path(spec.submodule_search_locations[0]), "the libucx wheel")


def _system(kit: Kit) -> Iterator[_Place]:
    for entry in filter(None, os.environ.get("CMAKE_PREFIX_PATH", "").split(os.pathsep)):
        yield _Place("system", Path(entry), "CMAKE_PREFIX_PATH")
    prefix = _pkg_config_prefix(kit)
    if prefix is not None:
        yield _Place("system", prefix, "pkg-config")
    yield _Place("system", Path("/usr/local"), "the system, /usr/local")
    yield _Place("system", Path("/usr"), "the system, /usr")


@functools.cache
def _pkg_config_prefix(kit: Kit) -> Path | None:
    program = shutil.which("pkg-config")
    if program is None:
        return None
    asked = subprocess.run(
        [program, "--variable=prefix", kit.pkg_config], capture_output=True, text=True, check=False
    )
    return Path(asked.stdout.strip()) if asked.returncode == 0 and asked.stdout.strip() else None


def _inspect(kit: Kit, place: _Place) -> Found | None:
    if place.prefix is None:
        return None
    for folder in _library_folders(place.prefix):
        library = folder / kit.sonames[-1]
        if library.is_file():
            include = place.prefix / "include"
            has_headers = (include / kit.header).is_file()
            version = _header_version(kit, include) if has_headers else None
            return Found(
                kit.name,
                place.kind,
                place.prefix,
                place.why,
                library,
                include if has_headers else None,
                version,
            )
    return None


def _library_folders(prefix: Path) -> Iterator[Path]:
    yield prefix / "lib"
    yield prefix / "lib64"
    import sysconfig  # reads a large file: only where it is asked

    if multiarch := sysconfig.get_config_var("MULTIARCH"):
        yield prefix / "lib" / multiarch


def _header_version(kit: Kit, include: Path) -> str | None:
    found = re.search(kit.version_pattern, (include / kit.version_header).read_text())
    return ".".join(found.groups()) if found else None


def _load(kit: Kit, built_with: str) -> Loaded:
    present = _already_loaded(kit)
    explicit = os.environ.get(f"{kit.name}_HOME")
    if present is not None:
        if explicit and Path(explicit).resolve() not in present.resolve().parents:
            raise LibraryError(
                f"{kit.name}_HOME is {explicit}, but this process has loaded {present} already: "
                f"unset {kit.name}_HOME, or create the group before the import of the module that loads "
                f"{kit.name}."
            )
        return Loaded(kit.name, "present", present, "already in the process", _own_version(kit))
    found = _first(kit, None, built_with)
    for soname in kit.sonames:
        try:
            ctypes.CDLL(str(found.library.with_name(soname)))
        except OSError as error:
            raise LibraryError(f"{found} cannot be loaded: {error}.") from error
    return Loaded(kit.name, found.kind, found.library, found.why, _own_version(kit))


# Who keeps memory registered from one message to the next, and so must hear when it is unmapped.
_REGISTERING = (
    "/sys/class/infiniband",
    "/dev/xpmem",
    "/dev/knem",
    "/dev/nvidiactl",
    "/dev/kfd",
)
_HOOKS = "UCX_MEM_MMAP_HOOK_MODE"
# Who says one of these has a use for hooks, or for none.
_OF_HOOKS = (_HOOKS, "UCX_MEM_EVENTS", "UCX_RCACHE_ENABLE", "UCC_UCX_RCACHE_ENABLE")


@contextlib.contextmanager
def _without_memory_hooks(said: Container[str]) -> Iterator[None]:
    """Keeps UCX from patching the C library's memory functions as it is loaded, where nothing here has a use
    for that and its user has not said otherwise. Patching takes it 400 ms of spinning."""
    if any(name in said for name in _OF_HOOKS) or any(Path(path).exists() for path in _REGISTERING):
        yield
        return
    os.environ[_HOOKS] = "none"
    try:
        yield
    finally:
        del os.environ[_HOOKS]


def _already_loaded(kit: Kit) -> Path | None:
    try:
        ctypes.CDLL(kit.sonames[-1], mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
    stem = re.escape(kit.sonames[-1].split(".so")[0])
    paths = re.findall(rf"(/\S*/{stem}\.so\S*)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    return Path(paths[0]) if paths else Path(kit.sonames[-1])


def _own_version(kit: Kit) -> str:
    get = getattr(
        ctypes.CDLL(kit.sonames[-1]), "ucc_get_version_string" if kit is UCC else "ucp_get_version_string"
    )
    get.restype = ctypes.c_char_p
    return str(get().decode())


def _main(arguments: list[str]) -> int:
    """Report every find for a build; with --json, the chosen ones as data."""
    as_data = "--json" in arguments
    checkout = Path(arguments[arguments.index("--build") + 1]) if "--build" in arguments else None
    chosen = {}
    for kit in (UCX, UCC):
        try:
            chosen[kit.name] = _first(kit, checkout, "")
        except LibraryError as error:
            print(error, file=sys.stderr)
            return 1
        if not as_data:
            for number, found in enumerate(all_found(kit, checkout)):
                print(f"{'use' if number == 0 else 'also there'}: {found}")
    if as_data:
        print(json.dumps({name: found._asdict() for name, found in chosen.items()}, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
