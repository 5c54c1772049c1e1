"""What every Python test shares: a bare environment, and where this checkout and its peers are.

No test has a limit of its own. Those with several processes go through `torch_ucc.testing`, which has one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Ranks on one host meet over loopback, whatever this host is called and however it resolves its name.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

# Settings of the caller's shell must not decide what a test sees. Where UCC and UCX are may be set, and which
# way the collectives of one host go, since ci/test runs the conformance suite by each.
for name in [name for name in os.environ if name.startswith(("TORCH_UCC_", "UCC_", "UCX_"))]:
    if name not in ("UCC_HOME", "UCX_HOME", "TORCH_UCC_HOST_PATH"):
        del os.environ[name]


@pytest.fixture(scope="session")
def repository() -> Path:
    """This checkout, for tests that ask git about it."""
    folder = Path(__file__).resolve().parents[2]
    asked = ("git", "log", "-1", "--format=")
    if shutil.which("git") is None or subprocess.run(asked, cwd=folder).returncode != 0:
        pytest.skip(f"git knows no repository in {folder}")
    return folder


@pytest.fixture(scope="session")
def made_peer() -> Callable[[str], Path]:
    """Makes a peer of ci/bench if nobody has yet, and says where it is."""
    repository = Path(__file__).resolve().parents[2]

    def make(name: str) -> Path:
        provide = 'source ci/lib/peers.sh && provide_peer "$1" "$2" && echo "$peers_home/$1"'
        command = ("bash", "-euo", "pipefail", "-c", provide, "bash", name, sys.executable)
        made = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300)
        assert made.returncode == 0, made.stdout + made.stderr
        return repository / made.stdout.splitlines()[-1]

    return make
