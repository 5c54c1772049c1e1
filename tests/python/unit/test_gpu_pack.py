"""`ci/gpu`, as far as it goes without a GPU: what it packs is enough to build from, without a network, and
its parts run on the accelerator made for tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from torch_ucc.testing import run_script

CHECKOUT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHECKOUT / ".deps" / "ucc").is_dir(), reason="no UCC that could be packed"),
]


def gpu(
    *arguments: str | Path, sources: Path = CHECKOUT, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sources / "ci" / "gpu", *map(str, arguments)],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack")
    done = gpu("--pack", folder)
    assert done.returncode == 0, done.stdout
    return folder


def test_the_pack_is_small_and_of_any_python(pack: Path) -> None:
    files = [path for path in pack.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 64 << 20
    wheels = [path.name for path in files if path.suffix == ".whl"]
    assert wheels and all("-py3-none-" in name or "-py2.py3-none-" in name for name in wheels)
    assert {name.split("-")[0].lower() for name in wheels} >= {
        "libucx_cu12",
        "scikit_build_core",
        "ninja",
        "pytest",
    }
    assert (pack / "ucc" / "lib" / "libucc.so.1").exists()


@pytest.fixture(scope="module")
def built(pack: Path, sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From the pack and the sdist alone. Whatever the environment tells pip, there is no index."""
    folder = tmp_path_factory.mktemp("sources")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (sources,) = folder.iterdir()
    # All that the compiler reads is below the sources: ccache then knows it in the folder of the next run.
    shutil.copytree(pack, sources / "pack")
    (sources / ".venv").symlink_to(sys.prefix)
    settings = {
        "PYTHON": str(sources / ".venv" / "bin" / "python"),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "LDFLAGS": "-Wl,--strip-debug",  # as ci/wheel
    }
    done = gpu("--build", sources / "pack", sources=sources, **settings)
    assert done.returncode == 0 and "ci/gpu: built for torch" in done.stdout, done.stdout
    return sources


def test_the_pack_and_the_sdist_alone_give_the_extension_of_the_wheel(built: Path, wheel: Path) -> None:
    """To the byte, built elsewhere."""
    (extension,) = built.glob("build/gpu-site/torch_ucc/_core*.so")
    with zipfile.ZipFile(wheel) as archive:
        same = extension.read_bytes() == archive.read(f"torch_ucc/{extension.name}")
    assert same, f"{extension} and that of {wheel} differ"


def rows(table: Path) -> dict[str, list[str]]:
    """By part: the result, seconds, the last line. And the row for docs/devices.md, by the device."""
    lines = [
        line.strip("| ").split(" | ") for line in table.read_text().splitlines() if line.startswith("| ")
    ]
    return {name: cells for name, *cells in lines}


FAKE = {"TESTED_ACCELERATOR": "privateuseone"}


def test_parts_run_and_leave_a_table(pack: Path, built: Path, tmp_path: Path) -> None:
    """compute-sanitizer and NCCL are for CUDA: what needs them is skipped, and says so."""
    settings = {**FAKE, "OUT": str(tmp_path), "BANDWIDTH": "--rounds 2 --sizes 4096 65536"}
    of_bandwidth = ("bandwidth", "direct-bandwidth", "native-bandwidth")
    done = gpu(pack, "training", "memory", *of_bandwidth, sources=built, **settings)
    assert done.returncode == 0, done.stdout
    found = rows(tmp_path / "gpu.md")
    results = {name: cells[0] for name, cells in found.items() if len(cells) == 3}
    assert results == {
        "part": "result",
        "build": "passed",
        "training": "passed",
        "memory": "skipped",
        "bandwidth": "passed",
        "direct-bandwidth": "passed",
        "native-bandwidth": "passed",
    }
    assert found["build"][2] == "ci/gpu: was built from these sources"
    assert found["training"][2].startswith("12 passed, 2 skipped in ")
    assert found["memory"][2].startswith("there is no compute-sanitizer")
    assert "all_reduce of 65536 bytes: " in found["bandwidth"][2] and "60% wanted" in found["bandwidth"][2]
    assert found["direct-bandwidth"][2].startswith("send and recv of 65536 bytes: ")
    (of_versions,) = (name for name in found if name.startswith("privateuseone, torch "))
    assert "UCC 1." in of_versions and "UCX 1." in of_versions
    assert "memory: skipped (there is no" in found[of_versions][0]
    assert "skipped: gloo, which has nothing for" in (tmp_path / "bandwidth.log").read_text()


def test_collectives_of_devices_need_a_ucc_that_has_them(pack: Path, built: Path, tmp_path: Path) -> None:
    parts = ("native", "native-bandwidth")
    done = gpu(pack, *parts, sources=built, TESTED_ACCELERATOR="cuda", OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout
    found = rows(tmp_path / "gpu.md")
    for part in parts:
        assert found[part][0] == "skipped" and "was built without CUDA" in found[part][2], found[part]


def test_a_part_that_fails_is_in_the_table_and_in_the_status(pack: Path, built: Path, tmp_path: Path) -> None:
    done = gpu(pack, "bandwidth", sources=built, **FAKE, OUT=str(tmp_path), BANDWIDTH="--unknown")
    assert done.returncode == 1 and rows(tmp_path / "gpu.md")["bandwidth"][0] == "FAILED: status 1", (
        done.stdout
    )


def test_the_program_for_compute_sanitizer(built: Path) -> None:
    """On the fake accelerator, which was built for the test of the table."""
    site = str(built / "build" / "gpu-site")
    printed = run_script(built / "tests" / "gpu" / "memory.py", 2, env={**FAKE, "PYTHONPATH": site})
    assert "results were right" in printed


@pytest.mark.parametrize(("copies", "gloo", "met"), [(0.6, 2.0, True), (0.59, 9.0, False), (0.9, 1.9, False)])
def test_what_is_wanted_of_the_bandwidth(copies: float, gloo: float, met: bool) -> None:
    spec = importlib.util.spec_from_file_location("bandwidth", CHECKOUT / "tests" / "gpu" / "bandwidth.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks for it
    spec.loader.exec_module(module)
    words, found = module.verdict({"of the copies": copies, "of gloo's speed": gloo})
    assert found is met and ("MISSED" in words) is not met


@pytest.mark.parametrize(
    "arguments", [(), ("--pack",), ("--else", "x"), ("a", "b", "c"), ("a", "training", "-x")]
)
def test_wrong_arguments_get_the_usage(arguments: tuple[str, ...]) -> None:
    done = gpu(*arguments)
    assert done.returncode == 2 and "ci/gpu --pack DIR" in done.stdout
