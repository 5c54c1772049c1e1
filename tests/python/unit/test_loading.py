"""Where UCC and UCX are looked for, in which order, and what a process has loaded afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import libucx
import pytest
import torch_ucc
from torch_ucc._native import loading
from torch_ucc._native.loading import UCC, UCX, Kit, LibraryError

BUNDLED = Path(torch_ucc.__file__).parent / "_ucc"
UCX_WHEEL = Path(libucx.__file__).parent
VARIABLES = (
    "UCC_HOME",
    "UCX_HOME",
    "HPCX_DIR",
    "HPCX_UCC_DIR",
    "HPCX_UCX_DIR",
    "CONDA_PREFIX",
    "CMAKE_PREFIX_PATH",
)


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is set, and neither HPC-X nor a system's copy is there, whatever this machine has."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    nowhere: Callable[[Kit], Iterator[Any]] = lambda kit: iter(())  # noqa: E731
    monkeypatch.setattr(loading, "_unpacked_hpcx", nowhere)
    monkeypatch.setattr(loading, "_system", nowhere)


def make_prefix(prefix: Path, kit: Kit, headers: bool = True) -> Path:
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib" / kit.sonames[-1]).touch()
    if headers:
        for header in (kit.header, kit.version_header):
            (prefix / "include" / header).parent.mkdir(parents=True, exist_ok=True)
            (prefix / "include" / header).write_text(
                '#define UCC_VERSION_STRING "9.8.7"\n#define UCP_API_MAJOR    9\n#define UCP_API_MINOR    8\n'
            )
    return prefix


@pytest.mark.parametrize("kit", [UCC, UCX], ids=lambda kit: kit.name)
def test_the_order_of_the_search(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "checkout"
    make_prefix(checkout / ".deps" / "ucc", UCC)
    for variable, name in (
        (f"{kit.name}_HOME", "home"),
        (f"HPCX_{kit.name}_DIR", "module"),
        ("CONDA_PREFIX", "conda"),
    ):
        monkeypatch.setenv(variable, str(make_prefix(tmp_path / name, kit)))
    last = "provisioned" if kit is UCC else "wheel"

    kinds = [found.kind for found in loading.all_found(kit, checkout)]

    assert kinds == ["explicit", "hpcx", "conda", last]


def test_a_run_prefers_what_the_extension_was_built_with(tmp_path: Path) -> None:
    built_with = make_prefix(tmp_path / "spack", UCC, headers=False)
    assert loading.find_ucc(built_with=str(built_with)).prefix == built_with
    assert loading.find_ucc(built_with=str(tmp_path / "gone")).kind == "bundled"


def test_a_run_passes_over_a_conda_prefix_that_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDA_PREFIX", str(make_prefix(tmp_path, UCC)))
    assert loading.find_ucc().kind == "bundled"


def test_a_version_is_read_from_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCC_HOME", str(make_prefix(tmp_path / "ucc", UCC)))
    monkeypatch.setenv("UCX_HOME", str(make_prefix(tmp_path / "ucx", UCX)))
    assert (loading.find_ucc().version, loading.find_ucx().version) == ("9.8.7", "9.8")


@pytest.mark.parametrize("folder", ["lib64", f"lib/{sysconfig.get_config_var('MULTIARCH')}"])
def test_other_library_folders_of_a_prefix(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "libucc.so.1").touch()
    monkeypatch.setenv("UCC_HOME", str(tmp_path))
    assert loading.find_ucc().library == tmp_path / folder / "libucc.so.1"


def test_a_home_without_a_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCC_HOME", str(tmp_path))
    with pytest.raises(LibraryError, match=rf"^UCC_HOME is {tmp_path}, but there is no libucc\.so\.1 in it"):
        loading.find_ucc()


def test_a_home_without_headers_is_an_error_for_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_HOME", str(make_prefix(tmp_path, UCX, headers=False)))
    assert loading.find_ucx().kind == "explicit"
    with pytest.raises(LibraryError, match=r"there is no ucp/api/ucp\.h in it"):
        loading.find_ucx(tmp_path)


def test_nothing_found_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LibraryError) as error:
        loading.find_ucc(tmp_path)
    for words in ("UCC_HOME is not set", "HPCX_UCC_DIR is not set", ".deps/ucc", "run ci/provision-ucc"):
        assert words in str(error.value)


# --- what a process has loaded: each in a fresh one ---------------------------------------------------------


LOOK = """
import ctypes, json, re, sys
{before}
from torch_ucc._native import extension, loading
try:
    extension.compiled()
except ImportError as error:
    print(json.dumps({{"error": str(error)}}))
    sys.exit()
assert loading.preload() == loading.loaded()
# Have both load their plugins.
count, components = ctypes.c_uint(), ctypes.c_void_p()
ctypes.CDLL("libuct.so.0").uct_query_components(ctypes.byref(components), ctypes.byref(count))
ctypes.CDLL("libucc.so.1").ucc_lib_config_read(None, None, ctypes.byref(ctypes.c_void_p()))
mapped = set(re.findall(r"/\\S*/libuc[a-z_]*\\.so\\S*", open("/proc/self/maps").read()))
loaded = [[one.name, one.kind, str(one.path)] for one in loading.loaded()]
print(json.dumps({{"mapped": sorted(mapped), "loaded": loaded}}))
"""


def look(before: str = "", **environment: str) -> dict[str, Any]:
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    answer: dict[str, Any] = json.loads(printed_by(LOOK.format(before=before), {**inherited, **environment}))
    return answer


def printed_by(program: str, environment: dict[str, str]) -> str:
    """In a process of its own, which has nothing to complain of."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def folders_of(mapped: list[str]) -> dict[str, set[Path]]:
    """By file name without version, where it was mapped from."""
    found: dict[str, set[Path]] = {}
    for path in map(Path, mapped):
        found.setdefault(path.name.split(".so")[0], set()).add(path.parent)
    return found


def test_without_a_word_from_the_user_the_wheels_serve() -> None:
    where = folders_of(look()["mapped"])
    assert where["libucp"] == where["libucs"] == {UCX_WHEEL / "lib"}
    assert where["libuct_cma"] == {UCX_WHEEL / "lib" / "ucx"}
    assert where["libucc"] == {BUNDLED / "lib"}
    assert where["libucc_tl_ucp"] == {BUNDLED / "lib" / "ucc"}


def test_the_users_homes_win_with_their_plugins(tmp_path: Path) -> None:
    ucc, ucx = tmp_path / "ucc", tmp_path / "ucx"
    shutil.copytree(BUNDLED / "lib", ucc / "lib")
    shutil.copytree(
        UCX_WHEEL / "lib", ucx / "lib", ignore=shutil.ignore_patterns("*.a", "*perftest*", "*cuda*")
    )
    answer = look(UCC_HOME=str(ucc), UCX_HOME=str(ucx))
    where = folders_of(answer["mapped"])
    assert where["libucp"] == where["libucs"] == where["libuct"] == where["libucm"] == {ucx / "lib"}
    assert where["libuct_cma"] == {ucx / "lib" / "ucx"}
    assert where["libucc"] == {ucc / "lib"}
    assert where["libucc_tl_ucp"] == {ucc / "lib" / "ucc"}
    assert [kind for _, kind, _ in answer["loaded"]] == ["explicit", "explicit"]


LOADED_BEFORE = "import libucx; libucx.load_library()"


def test_a_ucx_that_is_in_the_process_already_is_kept() -> None:
    answer = look(LOADED_BEFORE)
    assert answer["loaded"][0][:2] == ["UCX", "present"]
    # The wheel's libucp.so and libucp.so.0 are two files: loading both would be two UCX in one process.
    assert len([path for path in answer["mapped"] if Path(path).name.startswith("libucp.so")]) == 1


def test_a_home_that_comes_too_late_is_an_error(tmp_path: Path) -> None:
    answer = look(LOADED_BEFORE, UCX_HOME=str(make_prefix(tmp_path, UCX)))
    assert f"UCX_HOME is {tmp_path}, but this process has loaded {UCX_WHEEL}" in answer["error"]


# --- the hooks of UCX in the C library ---------------------------------------------------------------------


HOOKS = """
import ctypes, os
from torch_ucc._native import extension, loading
{registering}
libc = ctypes.CDLL(None)
start_of_munmap = lambda: ctypes.string_at(ctypes.cast(libc.munmap, ctypes.c_void_p), 13)
before, environment = start_of_munmap(), dict(os.environ)
extension.load_libraries()
assert dict(os.environ) == environment
print("patched" if start_of_munmap() != before else "as it was")
"""
NOBODY_REGISTERS = "loading._REGISTERING = ()"
HERE_ONE_DOES = "loading._REGISTERING = ('/nowhere', '/dev/null')"


@pytest.mark.parametrize(
    ("registering", "environment", "expected"),
    [
        (NOBODY_REGISTERS, {}, "as it was"),
        (HERE_ONE_DOES, {}, "patched"),
        (NOBODY_REGISTERS, {"UCX_MEM_MMAP_HOOK_MODE": "bistro"}, "patched"),
        (HERE_ONE_DOES, {"UCX_MEM_MMAP_HOOK_MODE": "none"}, "as it was"),
        (NOBODY_REGISTERS, {"UCX_MEM_EVENTS": "yes"}, "patched"),
        (NOBODY_REGISTERS, {"UCX_RCACHE_ENABLE": "y"}, "patched"),
    ],
)
def test_the_c_librarys_memory_functions_are_patched_only_where_somebody_needs_it(
    registering: str, environment: dict[str, str], expected: str
) -> None:
    assert munmap_after_preload(registering, **environment) == expected


def test_a_file_of_ucx_decides_over_its_hooks_as_well(tmp_path: Path) -> None:
    (tmp_path / "ucx.conf").write_text("UCX_MEM_MMAP_HOOK_MODE=bistro\n")
    assert munmap_after_preload(NOBODY_REGISTERS, HOME=str(tmp_path)) == "patched"


def munmap_after_preload(registering: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("UCX_MEM_")}
    return printed_by(HOOKS.format(registering=registering), {**inherited, **environment}).strip()
