"""`ci/gpu`, as far as it goes without a GPU: what it packs is enough to build from, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

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


def test_the_pack_and_the_sdist_alone_give_the_extension_of_the_wheel(
    pack: Path, sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    """To the byte, compiled anew and elsewhere. Whatever the environment tells pip, there is no index."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (sources,) = tmp_path.iterdir()
    # The wheel has no debug information, which takes a third of the time.
    options = "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-O2 -DNDEBUG'"
    anew = {"CCACHE_DISABLE": "1", "CMAKE_ARGS": options, "LDFLAGS": "-Wl,--strip-debug"}
    done = gpu("--build", pack, sources=sources, PIP_INDEX_URL="http://127.0.0.1:9/simple", **anew)
    assert done.returncode == 0 and "ci/gpu: built for torch" in done.stdout, done.stdout
    (built,) = sources.glob("build/gpu-site/torch_ucc/_core*.so")
    with zipfile.ZipFile(wheel) as archive:
        same = built.read_bytes() == archive.read(f"torch_ucc/{built.name}")
    assert same, f"{built} and that of {wheel} differ"


@pytest.mark.parametrize("arguments", [(), ("--pack",), ("--else", "x"), ("a", "b", "c")])
def test_wrong_arguments_get_the_usage(arguments: tuple[str, ...]) -> None:
    done = gpu(*arguments)
    assert done.returncode == 2 and "ci/gpu --pack DIR" in done.stdout
