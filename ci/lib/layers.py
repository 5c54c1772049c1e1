"""The layer rule: which folder of cpp/ may include which. Prints every breach; exits 1 if there is one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# A folder may include itself, base, and what stands here. A folder that is not here may not exist.
MAY_INCLUDE: dict[str, set[str]] = {
    "base": set(),
    "trace": set(),
    "progress": {"trace"},
    "bootstrap": set(),
    "liveness": set(),
    "ucc": {"trace", "progress", "bootstrap"},
    "messages": {"trace", "progress"},
    "ucx": {"trace", "progress", "bootstrap", "messages"},
    "shm": {"trace", "progress", "messages"},
    "hosts": {"trace", "progress", "messages", "shm", "ucc"},
    # --- torch begins here
    "compat": set(),
    "ops": {"progress", "messages", "hosts", "ucc", "ucx", "shm", "compat"},
    "work": {"trace", "progress", "compat"},
    "device": {"progress", "compat", "ops", "work"},
    "store": {"bootstrap", "compat"},
    "backend": {
        "trace",
        "progress",
        "bootstrap",
        "liveness",
        "messages",
        "hosts",
        "ucc",
        "ucx",
        "shm",
        "compat",
        "ops",
        "work",
        "device",
        "store",
    },
    # Names of what Python sees, each from where it lives.
    "bindings": {"backend", "bootstrap", "trace", "store", "work", "ucc", "ucx", "compat"},
}

# Headers of others, by the start of their path: the only folders that may see them.
TORCH_FOLDERS = {"compat", "ops", "work", "device", "store", "backend", "bindings"}
FOREIGN: dict[str, set[str]] = {
    "torch/": TORCH_FOLDERS,
    "ATen/": TORCH_FOLDERS,
    "c10/": TORCH_FOLDERS,
    "pybind11/": {"bindings"},
    "Python.h": {"bindings"},
    "ucc/": {"ucc", "hosts", "ops"},  # hosts and ops: for the types of the values they fill in
    "ucp/": {"ucx"},
    "uct/": set(),
    "ucs/": {"ucx"},
    "zlib.h": {"bootstrap"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH_VERSION = re.compile(r"\b(TORCH_VERSION|TUCC_TORCH_RELEASE)")


def breaches(source: Path, cpp: Path) -> Iterator[str]:
    """What `source` includes or tests that its folder may not."""
    folder = source.relative_to(cpp).parts[0]
    if folder not in MAY_INCLUDE:
        yield f"{source}: the folder {folder} is not in the layer rule (ci/lib/layers.py)"
        return
    for number, line in enumerate(source.read_text().splitlines(), 1):
        at = f"{source}:{number}"
        if TORCH_VERSION.search(line) and folder != "compat":
            yield f"{at}: the version of torch is tested in compat only"
        match = INCLUDE.match(line)
        if not match:
            continue
        bracket, path = match.groups()
        if bracket == '"':
            other = path.split("/")[0]
            if "/" not in path or other not in MAY_INCLUDE:
                yield f'{at}: "{path}": ours are included as "folder/file.h"'
            elif other not in {folder, "base", *MAY_INCLUDE[folder]}:
                yield f"{at}: {folder} may not include {other}"
        else:
            for start, folders in FOREIGN.items():
                if path.startswith(start) and folder not in folders:
                    allowed = ", ".join(sorted(folders)) or "nobody"
                    yield f"{at}: <{path}> is for {allowed}, not for {folder}"


def main(cpp: Path) -> int:
    sources = sorted(path for path in cpp.glob("*/**/*") if path.suffix in {".h", ".cc"})
    if not sources:
        print(f"no sources under {cpp}")
        return 1
    found = [breach for source in sources for breach in breaches(source, cpp)]
    print("\n".join(found) or f"{len(sources)} files keep the layer rule")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "cpp")))
