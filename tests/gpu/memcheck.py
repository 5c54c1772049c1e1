"""Runs memory.py on two ranks under compute-sanitizer. Ends with status 77 where that cannot show anything.

Memory is freed to the driver meanwhile, instead of kept by torch: what is touched after that is an error.
Errors of API calls are left to torch, which provokes some and handles them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOUND = 9  # the status with which the tool ends once it has found something
SKIPPED = 77
PROGRAM = Path(__file__).with_name("memory.py")


def tool() -> str | None:
    """On the PATH, or beside nvcc."""
    nvcc = Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve()
    beside = [nvcc.parent, nvcc.parent.parent / "compute-sanitizer"]
    return shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], *map(str, beside)]))


def main() -> int:
    if (found := tool()) is None:
        print("there is no compute-sanitizer, neither on the PATH nor beside nvcc")
        return SKIPPED
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    watched = [
        found,
        "--tool=memcheck",
        "--report-api-errors=no",
        f"--error-exitcode={FOUND}",
        sys.executable,
        str(PROGRAM),
    ]
    planted = subprocess.run([*watched, "--planted"], env=environment, capture_output=True, text=True)
    if planted.returncode != FOUND:
        print(planted.stdout[-2000:], planted.stderr[-2000:])
        print(f"{found} does not find a planted error here (status {planted.returncode})")
        return SKIPPED
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--no-python",
    ]
    done = subprocess.run([*launch, *watched], env=environment)
    reported = "nothing" if done.returncode == 0 else "see above"
    print(f"compute-sanitizer, which found a planted error, reported: {reported}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
