"""The wheel: what is in it, and that it works in a clean environment that knows nothing of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHECKOUT / "cpp").is_dir(), reason="there are no sources to build a wheel from"),
]


def run(*command: str | Path, cwd: Path, timeout: float = 600, **environment: str) -> str:
    """stdout and stderr. The environment is bare: nothing of the checkout's may leak in."""
    kept = {
        name: os.environ[name]
        for name in os.environ
        if name.startswith(("PIP_", "SSL_", "LANG", "HOME", "TMP"))
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel and what it depends on."""
    place = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", place / "venv", cwd=place)
    python = place / "venv" / "bin" / "python"
    install = ("install", "-q", "-c", CHECKOUT / "ci" / "lib" / "torch.txt")
    run(python, "-m", "pip", *install, wheel, cwd=place)
    return python


def unpack(wheel: Path, folder: Path) -> Path:
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_the_wheel_holds_what_it_should(wheel: Path, tmp_path: Path) -> None:
    package = unpack(wheel, tmp_path) / "torch_ucc"
    files = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert {"py.typed", "_build_info.py", "_ucc/lib/libucc.so.1", "_ucc/lib/ucc/libucc_tl_ucp.so"} <= files
    assert any(name.startswith("_ucc/licences/") for name in files)
    assert not [name for name in files if name.endswith((".in", ".a", ".h", ".cc"))]
    assert len([name for name in files if name.startswith("_core.") and name.endswith(".so")]) == 1
    assert list(tmp_path.glob("*.dist-info/licenses/LICENSE"))
    metadata = next(tmp_path.glob("*.dist-info/METADATA")).read_text()
    required = set(re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE))
    assert required == {"torch", "libucx-cu12", "tomli"}  # the last for Python 3.10 only
    assert set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE)) == {"bench"}


def test_nothing_in_it_is_looked_for_on_the_machine_that_built_it(wheel: Path, tmp_path: Path) -> None:
    package = unpack(wheel, tmp_path) / "torch_ucc"
    for library in [*package.glob("_core*.so"), *package.glob("_ucc/**/*.so*")]:
        dynamic = run("readelf", "-d", library, cwd=tmp_path)
        paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic)
        assert all(path.startswith("$ORIGIN") for path in ":".join(paths).split(":") if path), dynamic
    assert str(CHECKOUT) not in (package / "_build_info.py").read_text()


SYSTEM = {
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "libz.so.1",
    "ld-linux-x86-64.so.2",
}  # which any Linux has that runs Python: see manylinux
TORCH = {"libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libc10.so"}
UCX = {"libucp.so.0", "libucs.so.0"}
VERBS = {"libibverbs.so.1"}


def test_it_asks_for_what_docs_packaging_says(wheel: Path, tmp_path: Path) -> None:
    package = unpack(wheel, tmp_path) / "torch_ucc"
    libraries = [*package.glob("_core*.so"), *package.glob("_ucc/**/*.so*")]
    needed = {
        name
        for library in libraries
        for name in re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library, cwd=tmp_path))
    }
    carried = {library.name for library in libraries}
    assert needed - carried - SYSTEM == TORCH | UCX | VERBS


@pytest.mark.parametrize("bundle", ["ON", "OFF"])
def test_ucc_can_be_left_out(bundle: str, tmp_path: Path) -> None:
    """Configured only, for that decides it; another build would take minutes."""
    options = (f"-DTORCH_UCC_BUNDLE_UCC={bundle}", f"-DPython_EXECUTABLE={sys.executable}")
    run("cmake", "-S", CHECKOUT, "-B", tmp_path, *options, cwd=tmp_path)
    installs = "torch_ucc/_ucc/lib" in (tmp_path / "cmake_install.cmake").read_text()
    info = (tmp_path / "_build_info.py").read_text()
    # Left out, what it was built with is what it will run with.
    carried = 'UCC_PREFIX = ""' in info
    assert (installs, carried, "UCC_BUNDLED = True" in info) == ((bundle == "ON"),) * 3


TWO_RANKS = """
import re
import torch, torch.distributed as dist
dist.init_process_group("ucc")
x = torch.full((4,), dist.get_rank() + 1.0)
dist.all_reduce(x)
assert x.tolist() == [3.0] * 4, x
mapped = set(re.findall(r"(/\\S*/lib(?:ucc|ucp)\\.so\\S*)", open("/proc/self/maps").read()))
if dist.get_rank() == 0:
    print("mapped:", *sorted(mapped))
dist.destroy_process_group()
"""


def test_two_ranks_elsewhere_without_importing_torch_ucc(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "two_ranks.py").write_text(TWO_RANKS)
    torchrun = installed.with_name("torchrun")
    printed = run(torchrun, "--standalone", "--nproc-per-node=2", "two_ranks.py", cwd=tmp_path, timeout=120)
    mapped = re.search(r"mapped: (.*)", printed)
    assert mapped, printed
    environment = str(installed.parent.parent)
    assert len(mapped[1].split()) == 2
    assert all(path.startswith(environment) for path in mapped[1].split())


LOAD = "from torch_ucc._native import extension; extension.compiled()"


def test_an_extension_for_another_torch_says_so(installed: Path, tmp_path: Path) -> None:
    (package,) = installed.parent.parent.glob("lib/python*/site-packages/torch_ucc")
    shutil.copytree(package, tmp_path / "torch_ucc")
    (mine,) = (tmp_path / "torch_ucc").glob("_core.torch-*.so")
    mine.rename(mine.with_name(re.sub(r"torch-\d+\.\d+", "torch-2.11", mine.name)))
    printed = run(installed, "-c", f"try: {LOAD}\nexcept ImportError as error: print(error)", cwd=tmp_path)
    assert re.search(r"^torch_ucc was built for torch 2\.11, but torch \S+ is running", printed, re.M)


def test_without_ucx_it_says_so(installed: Path, tmp_path: Path) -> None:
    hide = "import sys; sys.modules['libucx'] = None"
    printed = run(
        installed, "-c", f"{hide}\ntry: {LOAD}\nexcept ImportError as error: print(error)", cwd=tmp_path
    )
    assert "No UCX was found (looked at: UCX_HOME is not set" in printed
    assert "the libucx wheel is not installed" in printed
