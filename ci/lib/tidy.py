"""clang-tidy over all files below folders, one process a core.

It takes minutes for all of them: a file that was found clean is not read again while nothing changed that it
includes, nor how it is compiled, nor what is asked.

tidy.py BUILD FOLDER...: a build folder with compile_commands.json, and folders of the project. Prints what
clang-tidy says; exits 1 if there is anything.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLEAN = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch-ucc" / "clang-tidy"


@functools.cache
def digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def includes(words: list[str], folder: str) -> list[str]:
    """All files that one is compiled from, as the compiler names them."""
    output = words.index("-o")
    asked = [*words[:output], *words[output + 2 :], "-M"]
    rule = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=True).stdout
    return rule.replace("\\\n", " ").split(":", 1)[1].split()


def key(entry: dict[str, str], asked: str) -> str:
    """Of all that the answer depends on, wherever the project lies."""
    words = shlex.split(entry["command"])
    folder = Path(entry["directory"])
    files = {os.path.realpath(folder / name) for name in includes(words, entry["directory"])}
    read = sorted(f"{name} {digest(name)}".replace(str(ROOT), "") for name in files)
    return hashlib.sha256("\n".join([asked, *words, *read]).replace(str(ROOT), "").encode()).hexdigest()


def check(entry: dict[str, str], build: str, asked: str) -> str:
    """What clang-tidy finds in one file; nothing if it is clean."""
    clean = CLEAN / key(entry, asked)
    if clean.exists():
        return ""
    command = ["clang-tidy", "-p", build, "--quiet", entry["file"]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0 and not done.stdout.strip():
        CLEAN.mkdir(parents=True, exist_ok=True)
        clean.touch()
        return ""
    return done.stdout + done.stderr


def main(build: str, *folders: str) -> int:
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    asked = version + (ROOT / ".clang-tidy").read_text()
    compiled = {each["file"]: each for each in json.loads(Path(build, "compile_commands.json").read_text())}
    files = [str(file) for folder in folders for file in sorted((ROOT / folder).rglob("*.cc"))]
    if unknown := [file for file in files if file not in compiled]:
        raise SystemExit(f"tidy.py: {build} does not compile {' '.join(unknown)}")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(lambda file: check(compiled[file], build, asked), files))
    print("".join(found), end="")
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
