"""The documentation as data: pages, their fenced blocks, links and anchors, and the files that they name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "cpp/ARCHITECTURE.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Fenced text of a page."""

    page: str
    language: str
    text: str

    @property
    def name(self) -> str:
        """By which tests and people find it: the page, and how its first line begins."""
        return f"{self.page}: {self.lines()[0][:40]}".rstrip()

    def lines(self) -> list[str]:
        """The commands of a block of them: without comments, and whole where one goes on in the next line."""
        joined = self.text.replace("\\\n", " ").splitlines()
        return [bare for line in joined if (bare := re.sub(r"(^|\s+)#.*", "", line).rstrip())]


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def blocks() -> list[Block]:
    return [
        Block(name_of(page), language, text)
        for page in PAGES
        for language, text in _FENCED.findall(page.read_text())
    ]


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """Those within the repository."""
    return re.findall(r"\]\((?!\w+:)([^)\s]+)\)", prose(page))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def files_named(page: Path) -> list[str]:
    """What stands in `code` and looks like a file of the sources; NAME in it stands for any."""
    return re.findall(r"`([\w./-]+\.(?:py|cc|h|md|sh|yaml|txt|toml))`", prose(page))


def all_files() -> list[str]:
    found = []
    for folder, inner, names in os.walk(REPOSITORY):
        inner[:] = [name for name in inner if name not in (".git", ".venv", ".deps", "build", "dist")]
        found += [str((Path(folder) / name).relative_to(REPOSITORY)) for name in names]
    return found


def is_there(named: str, files: list[str]) -> bool:
    """Whether a file has this path, or one that ends with it."""
    pattern = named.replace("NAME", "*")
    return any(fnmatch(f"/{path}", f"*/{pattern}") for path in files)
