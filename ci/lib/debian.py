"""Packages of a Debian suite and architecture, unpacked into a folder; nothing of the system changes.

The archive is that which the machine's own apt is configured with. apt keeps its state in a folder of the
caller.

    debian.py archive    prints the archive's address and the keyring for it
    debian.py unpack STATE SUITE ARCHITECTURE FOLDER PACKAGE...
                         exit status 3: the suite has no such package
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

APT = Path("/etc/apt")


class Archive(NamedTuple):
    address: str
    signed_by: (
        str | None
    )  # a keyring's path, or the key itself in lines that are indented as in a deb822 file


class NoArchiveError(Exception):
    """apt is not configured with a Debian archive."""


class NoPackageError(Exception):
    """The suite has no such package."""


class AptError(Exception):
    """apt failed; the message is apt's own."""


def archive(apt: Path = APT) -> Archive:
    """The first Debian archive that the configuration in `apt` names. Raises NoArchiveError."""
    for file in sorted(apt.glob("sources.list.d/*.sources")):
        for stanza in re.split(r"\n\s*\n", re.sub(r"^#.*\n", "", file.read_text(), flags=re.M)):
            # A value may go on over indented lines, as a key written out in place does.
            fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t].+)*)", stanza, re.M))
            if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "yes") != "no":
                for address in filter(_is_debian, fields.get("URIs", "").split()):
                    return Archive(address, fields.get("Signed-By"))
    for file in (apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))):
        text = file.read_text() if file.is_file() else ""
        for options, address in re.findall(r"^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s", text, re.M):
            if _is_debian(address):
                key = re.search(r"signed-by=(\S+)", options)
                return Archive(address, key[1] if key else None)
    raise NoArchiveError("apt is not configured with a Debian archive here.")


def _is_debian(address: str) -> bool:
    return address.rstrip("/").endswith("/debian")


def stanza(found: Archive, suite: str) -> str:
    """The suite of an archive, in apt's deb822 format."""
    lines = ["Types: deb", f"URIs: {found.address}", f"Suites: {suite}", "Components: main"]
    return "\n".join([*lines, *([f"Signed-By: {found.signed_by}"] if found.signed_by else [])]) + "\n"


def download(state: Path, suite: str, architecture: str, folder: Path, packages: Sequence[str]) -> list[Path]:
    """Puts the files of `packages` into `folder`. `state` keeps the lists of this suite and architecture
    for the next call. Raises NoArchiveError, NoPackageError, AptError."""
    home = state / f"{suite}-{architecture}"
    options = _private(home, architecture)
    if not (home / "fetched").exists():
        (home / "sources" / "debian.sources").write_text(stanza(archive(), suite))
        _apt_get(*options, "update")
        (home / "fetched").touch()
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob("*.deb"))
    try:
        _apt_get(*options, "download", *packages, cwd=folder)
    except AptError as error:
        if re.search("Unable to locate package|Can't select", str(error)):
            raise NoPackageError(f"{suite} has no {' '.join(packages)} for {architecture}.") from error
        _apt_get(*options, "update")  # the archive has other versions by now
        _apt_get(*options, "download", *packages, cwd=folder)
    return sorted(set(folder.glob("*.deb")) - before)


def unpack(state: Path, suite: str, architecture: str, folder: Path, packages: Sequence[str]) -> list[str]:
    """Unpacks `packages` below `folder`, and returns the names of their files, which have the versions."""
    with tempfile.TemporaryDirectory() as scratch:
        files = download(state, suite, architecture, Path(scratch), packages)
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            subprocess.run(["dpkg", "-x", file, folder], check=True)
        return [file.name for file in files]


def _apt_get(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run(["apt-get", *words], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise AptError(f"`apt-get {words[-1]}` failed: {done.stderr.strip() or done.stdout.strip()}")


def _private(home: Path, architecture: str) -> list[str]:
    """Options by which apt keeps its state in `home`, and takes its sources from there."""
    for below in ("sources", "state/lists/partial", "cache/archives/partial"):
        (home / below).mkdir(parents=True, exist_ok=True)
    (home / "status").touch()
    options: list[str] = []
    for option in (
        "Dir::Etc::SourceList=/dev/null",
        f"Dir::Etc::SourceParts={home}/sources",
        f"Dir::State={home}/state",
        f"Dir::State::Lists={home}/state/lists",
        f"Dir::State::Status={home}/status",
        f"Dir::Cache={home}/cache",
        f"APT::Architecture={architecture}",
        f"APT::Architectures={architecture}",
        "APT::Sandbox::User=",
        "Acquire::Languages=none",
        "Acquire::Retries=3",
        "APT::Update::Error-Mode=any",
    ):
        options += ["-o", option]
    return options


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["archive"]:
                address, signed_by = archive()
                print(address, signed_by if signed_by and signed_by.startswith("/") else "")
            case ["unpack", state, suite, architecture, folder, *packages]:
                print(*unpack(Path(state), suite, architecture, Path(folder), packages))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except NoPackageError as reason:
        print(reason, file=sys.stderr)
        return 3
    except (NoArchiveError, AptError) as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
