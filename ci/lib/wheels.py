"""What ci/wheels does to a wheel after it was built.

    wheels.py finish WHEEL FOLDER   puts the wheel for an index into FOLDER, beside its debug information
    wheels.py show WHEEL...         prints tag, size, extensions and requirements of each

`finish` takes the debug information out of the extensions, lets them run with an older libstdc++ where that
is sound, and narrows the torch that the wheel requires to the releases that it has extensions for. auditwheel
chooses the tag. The same wheel gives the same bytes. SOURCE_DATE_EPOCH is the time of all files.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

import elf

NOT_INSIDE = (
    # torch and UCX are dependencies, and loaded before the extension.
    *("libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libc10.so"),
    *("libucp.so.0", "libucs.so.0", "libuct.so.0", "libucm.so.0"),
    # UCC is in the wheel already, and loaded before its components.
    *("libucc.so.1", "libtorch_ucc_glibc.so"),
    # rdma-core must fit the kernel's drivers. UCC does without the component that needs it.
    *("libibverbs.so.1", "librdmacm.so.1"),
)
"""Libraries that auditwheel must not copy into the wheel."""

IN_TWO_VERSIONS = {
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE": ("GLIBCXX_3.4.30", "GLIBCXX_3.4.11")
}
"""Functions that libstdc++ defines in a new and in an old version. The wheel asks for the old version, so
that it runs with a libstdc++ that has only the old one. The old wait() ends the process if pthread_cancel()
strikes a thread in it; nothing here calls that."""


def epoch() -> int:
    return int(os.environ["SOURCE_DATE_EPOCH"])


def run(*command: str | Path) -> None:
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        sys.exit(f"wheels: `{command[0]} …` failed:\n{done.stdout}")


def finish(wheel: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tree)
        extensions = sorted(tree.glob("torch_ucc/_core.torch-*.so"))
        machine = wheel.stem.rsplit("linux_", 1)[1]
        debug = {}
        for extension in extensions:
            ask_for_old_versions(extension)
            debug[f"{extension.name}.debug"] = split_debug(extension, machine, Path(scratch))
        narrow_torch(tree, [minor_of(extension) for extension in extensions])
        plain = Path(scratch) / wheel.name
        pack(tree, plain)
        excluded = [word for library in NOT_INSIDE for word in ("--exclude", library)]
        repaired = Path(scratch) / "repaired"
        run("auditwheel", "repair", "--plat", "auto", *excluded, "-w", repaired, plain)
        (made,) = repaired.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        # auditwheel keeps the order in which its system lists a folder.
        again = Path(scratch) / "again"
        with zipfile.ZipFile(made) as archive:
            archive.extractall(again)
        pack(again, folder / made.name)
        (folder / f"{made.stem}-debug.tar.xz").write_bytes(tarred(debug))
        print(folder / made.name)


def minor_of(extension: Path) -> str:
    return extension.name.removeprefix("_core.torch-").split(".cpython")[0]


def ask_for_old_versions(library: Path) -> None:
    for symbol, (new, old) in IN_TWO_VERSIONS.items():
        needs = {need.version: need for need in elf.ElfFile(library).needs()}
        if new not in needs or old not in needs:
            continue
        elf.ElfFile(library).rebind(needs[new], needs[old], {symbol})
        if not elf.ElfFile(library).symbols_of(needs[new]):
            elf.ElfFile(library).rename_need(needs[new], needs[old])


def split_debug(library: Path, machine: str, scratch: Path) -> bytes:
    """Takes the debug information out of `library`, which then names the file to look for, and returns it."""
    objcopy = "objcopy" if machine == os.uname().machine else f"{machine}-linux-gnu-objcopy"
    debug = scratch / f"{library.name}.debug"
    run(objcopy, "--only-keep-debug", library, debug)
    run(objcopy, "--strip-unneeded", library)
    run(objcopy, f"--add-gnu-debuglink={debug}", library)
    return debug.read_bytes()


def narrow_torch(tree: Path, minors: list[str]) -> None:
    """Requires the releases of torch that there are extensions for, so that pip installs no other."""
    releases = sorted(tuple(map(int, minor.split("."))) for minor in minors)
    for (major, minor), following in itertools.pairwise(releases):
        if following != (major, minor + 1):
            sys.exit(f"wheels: extensions for torch {', '.join(minors)}: there is a gap")
    (metadata,) = tree.glob("*.dist-info/METADATA")
    first, (major, last) = releases[0], releases[-1]
    required = f"Requires-Dist: torch<{major}.{last + 1},>={first[0]}.{first[1]}"
    text, count = re.subn(r"^Requires-Dist: torch[<>=].*$", required, metadata.read_text(), flags=re.M)
    if count != 1:
        sys.exit("wheels: the metadata does not require torch exactly once")
    metadata.write_text(text)


def pack(tree: Path, wheel: Path) -> None:
    """A wheel of the files below `tree`: sorted, with one time, and a RECORD of what they are now."""
    (info,) = tree.glob("*.dist-info")
    record = info / "RECORD"
    files = sorted(path for path in tree.rglob("*") if path.is_file() and path != record)
    lines = []
    for path in files:
        data = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path.relative_to(tree)},sha256={digest},{len(data)}\n")
    record.write_text("".join(lines) + f"{record.relative_to(tree)},,\n")
    # Metadata at the end, where readers look first.
    files.sort(key=lambda path: (info in path.parents, path))
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in [*files, record]:
            entry = zipfile.ZipInfo(str(path.relative_to(tree)), time.gmtime(epoch())[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.suffix == ".so" else 0o100644) << 16
            archive.writestr(entry, path.read_bytes(), compresslevel=9)


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), epoch(), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return lzma.compress(out.getvalue(), preset=1)


def show(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.M)
        minors = [
            minor_of(Path(name)) for name in archive.namelist() if Path(name).name.startswith("_core.torch-")
        ]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    print(wheel.name)
    print(f"    {wheel.stat().st_size:,} bytes, unpacked {unpacked:,}; sha256 {digest}")
    needed = ", ".join(requirement for requirement in required if "extra ==" not in requirement)
    print(f"    extensions for torch {', '.join(sorted(minors))}; requires {needed}")


def main(arguments: list[str]) -> int:
    match arguments:
        case ["finish", wheel, folder]:
            finish(Path(wheel), Path(folder))
        case ["show", *wheels]:
            for wheel in wheels:
                show(Path(wheel))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
