"""The few facts of a 64-bit little-endian ELF shared library that `ci/provision-ucc` and `ci/wheels` need.

Reads which versions of each library a file needs, and which symbols need them. Can change in the file which
version a symbol needs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

SHT_DYNSYM, SHT_GNU_VERNEED, SHT_GNU_VERSYM = 11, 0x6FFFFFFE, 0x6FFFFFFF
SHN_UNDEF = 0


@dataclass(frozen=True)
class Section:
    kind: int
    offset: int
    size: int
    link: int
    count: int  # sh_info; for version needs: the number of records


@dataclass(frozen=True)
class Need:
    """One version that a file asks of one library (an Elf64_Vernaux entry)."""

    library: str
    version: str
    index: int  # what .gnu.version says of the symbols that use it
    offset: int  # of the entry, in the file
    hash: int
    name_offset: int  # of the version's name, in the string table


class ElfFile:
    """A snapshot of `path`, taken at construction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = path.read_bytes()
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", self._data, 0x28)
        size, count = struct.unpack_from("<HH", self._data, 0x3A)
        self._sections = [self._section(table + i * size) for i in range(count)]

    def needs(self) -> list[Need]:
        """Every library version asked for."""
        found: list[Need] = []
        for section in self._of_kind(SHT_GNU_VERNEED):
            strings = self._sections[section.link]
            record = section.offset
            for _ in range(section.count):
                _, entries, file_name, first, following = struct.unpack_from("<HHIII", self._data, record)
                entry = record + first
                for _ in range(entries):
                    hash_, _, index, name, step = struct.unpack_from("<IHHII", self._data, entry)
                    found.append(
                        Need(
                            self._string(strings, file_name),
                            self._string(strings, name),
                            index,
                            entry,
                            hash_,
                            name,
                        )
                    )
                    entry += step
                record += following
        return found

    def symbols_of(self, need: Need) -> list[str]:
        """The undefined symbols bound to `need`."""
        return [name for _, name in self._undefined(need)]

    def rename_need(self, need: Need, to: Need) -> None:
        """Make the entry of `need` ask for what `to` asks for; writes the file.

        Only sound when no symbol is bound to `need` any more and both belong to one library.
        """
        if need.library != to.library or self.symbols_of(need):
            raise ValueError(f"{need.version} of {self._path.name} is still in use")
        data = bytearray(self._data)
        struct.pack_into("<I", data, need.offset, to.hash)
        struct.pack_into("<I", data, need.offset + 8, to.name_offset)
        self._path.write_bytes(data)

    def rebind(self, need: Need, to: Need, symbols: set[str]) -> None:
        """Make the undefined `symbols`, bound to `need`, ask for `to` instead; writes the file.

        Only sound when the library defines them in both versions.
        """
        if need.library != to.library:
            raise ValueError(f"{need.version} and {to.version} are versions of two libraries")
        data = bytearray(self._data)
        (versions,) = self._of_kind(SHT_GNU_VERSYM)
        for i, name in self._undefined(need):
            if name in symbols:
                struct.pack_into("<H", data, versions.offset + i * 2, to.index)
        self._path.write_bytes(data)

    def _undefined(self, need: Need) -> list[tuple[int, str]]:
        """The undefined symbols bound to `need`, with their places in the symbol table."""
        (symbols,), (versions,) = self._of_kind(SHT_DYNSYM), self._of_kind(SHT_GNU_VERSYM)
        strings = self._sections[symbols.link]
        found = []
        for i in range(symbols.size // 24):
            name, _, _, section, _, _ = struct.unpack_from("<IBBHQQ", self._data, symbols.offset + i * 24)
            (version,) = struct.unpack_from("<H", self._data, versions.offset + i * 2)
            if section == SHN_UNDEF and version & 0x7FFF == need.index:
                found.append((i, self._string(strings, name)))
        return found

    def _section(self, at: int) -> Section:
        _, kind, _, _, offset, size, link, info = struct.unpack_from("<IIQQQQII", self._data, at)
        return Section(kind, offset, size, link, info)

    def _of_kind(self, kind: int) -> list[Section]:
        return [section for section in self._sections if section.kind == kind]

    def _string(self, table: Section, at: int) -> str:
        start = table.offset + at
        return self._data[start : self._data.index(b"\0", start)].decode()
