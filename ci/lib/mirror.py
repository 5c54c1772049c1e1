"""The mirror rule: cpp/<folder>/<name>.* without torch is tested in tests/cpp/<folder>/<name>_test.cc.

A longer one may have more, as <name>_<part>_test.cc. One that sees torch may have a test. Prints every
breach; exits 1 if there is one.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDERS = ["base", "trace", "progress", "messages", "shm", "bootstrap", "liveness", "ucc", "ucx", "hosts"]
SEE_TORCH = ["ops", "work", "device", "store", "backend"]
"""Most modules there need peers or a device: the Python tests run it in real processes."""

NEEDS_PEERS = "calls into UCC with peers: the Python tests run it in real processes"
WITHOUT_TEST = {
    "base/part": "values only",
    "base/settings": "values only",
    "base/thread_annotations": "checked by clang's -Wthread-safety, which ci/check runs",
    "messages/carrier": "an interface",
    "messages/parcel": "tested with messages/messages, whose operations it is a part of",
    "progress/op": "an interface",
    "progress/pollable": "an interface",
    "ucc/context": NEEDS_PEERS,
    "ucc/memory": "tested with ucc/collective, which has functions of UCC to ask",
    "ucc/team": NEEDS_PEERS,
    "ucx/probe": "starts UCX's transports: the Python tests compare what it says in real processes",
}


def main(root: Path) -> int:
    cpp, tests = root / "cpp", root / "tests" / "cpp"

    def modules_in(folders: list[str]) -> set[str]:
        return {
            f"{folder}/{path.stem}"
            for folder in folders
            for path in (cpp / folder).glob("*.*")
            if path.suffix in {".h", ".cc"}
        }

    modules, others = modules_in(FOLDERS), modules_in(SEE_TORCH)
    tested = {f"{path.parent.name}/{path.stem.removesuffix('_test')}" for path in tests.glob("*/*_test.cc")}
    built = (tests / "CMakeLists.txt").read_text()

    found = [
        f"cpp/{name}: no tests/cpp/{name}_test.cc, and no reason in ci/lib/mirror.py"
        for name in sorted(modules - tested - WITHOUT_TEST.keys())
    ]
    found += [
        f"ci/lib/mirror.py: {name} is {'tested' if name in tested else 'gone'}: remove its reason"
        for name in sorted(WITHOUT_TEST)
        if name in tested or name not in modules
    ]
    found += [
        f"tests/cpp/{name}_test.cc: there is no cpp/{name}.* that it tests"
        for name in sorted(tested)
        if not {name, name.rsplit("_", 1)[0]} & (modules | others)
    ]
    found += [
        f"tests/cpp/{name}_test.cc is not in tests/cpp/CMakeLists.txt"
        for name in sorted(tested)
        if f"{name}_test.cc" not in built
    ]
    print(
        "\n".join(found)
        or f"{len(modules)} modules, {len(tested)} test files, {len(WITHOUT_TEST)} exempted with a reason"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
