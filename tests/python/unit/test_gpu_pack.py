"""`ci/gpu`, as far as it goes without a GPU: what it packs is enough to build from, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHECKOUT / ".deps" / "ucc").is_dir(), reason="no UCC that could be packed"),
]


def gpu(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CHECKOUT / "ci" / "gpu", *map(str, arguments)],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
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


def test_it_is_built_from_the_pack_alone(pack: Path) -> None:
    """Whatever pip is told by its environment, there is no index."""
    done = gpu("--build", pack, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert done.returncode == 0 and "ci/gpu: built for torch" in done.stdout, done.stdout


@pytest.mark.parametrize("arguments", [(), ("--pack",), ("--else", "x"), ("a", "b", "c")])
def test_wrong_arguments_get_the_usage(arguments: tuple[str, ...]) -> None:
    done = gpu(*arguments)
    assert done.returncode == 2 and "ci/gpu --pack DIR" in done.stdout
