"""A machine as a picture, in SVG: boxes within boxes, as what is in them is connected. A pure function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from torch_ucc.topology.inventory import Device, Inventory, Numa, cpus_in, usable_cores
from torch_ucc.topology.picture import node_of, size_text

_GAP, _PAD, _LINE = 10, 12, 15
_BIG, _SMALL = 12, 11
_WIDE = 0.6
"""Of a letter on average, by its size; for bold ones too, which are few."""

_STYLE = """
text { font-family: system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif; fill: #1f2933; }
.title { font-size: 18px; font-weight: 600; } .head { font-size: 12px; font-weight: 600; }
.note { font-size: 11px; fill: #52606d; } .page { fill: #ffffff; }
rect { stroke-width: 1; } .node { fill: #f5f7fa; stroke: #cbd2d9; } .bus { fill: #ffffff; stroke: #cbd2d9; }
.card { fill: #ffffff; stroke: #cbd2d9; } .off .card { stroke-dasharray: 4 3; } .off { opacity: 0.55; }
.gpu { fill: #3f9142; } .rdma { fill: #2186eb; } .net { fill: #de911d; }
.links { fill: #e3f9e5; stroke: #3f9142; }
"""
_KINDS = {"gpu": "GPU", "rdma": "RDMA port", "net": "network interface"}


@dataclass(frozen=True)
class Box:
    """A piece of the picture, with its upper left corner at 0,0."""

    width: int
    height: int
    body: str


@dataclass
class _Card:
    """What is on one PCI device, or on none."""

    kind: str
    head: str
    notes: list[str]
    is_off: bool


def svg(host: Inventory) -> str:
    cards = _cards(host)
    width = max(
        [
            _text_width(text, size)
            for card in cards.values()
            for text, size in [(card.head, _BIG), *((note, _SMALL) for note in card.notes)]
        ],
        default=0,
    )
    boxes = {key: _card_box(card, width + 2 * _PAD) for key, card in cards.items()}
    devices = {device.pci: device for device in _devices(host)}
    panels = [_panel(host, node, boxes, devices) for node in (*host.numa, None)]
    shown = [panel for panel in panels if panel]
    parts = [_header(host), _columns(shown)]
    if switched := [gpu for gpu in host.gpus if "switch" in gpu.links]:
        text = f"NVSwitch: {switched[0].links['switch']} NVLinks of each of {len(switched)} GPUs"
        parts.append(_bar(text, max(part.width for part in parts)))
    parts.append(_legend({card.kind for card in cards.values()}))
    page = _stack(parts)
    wide, high = page.width + 2 * _PAD, page.height + 2 * _PAD
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" role="img">\n'
        f"<title>{escape(host.host)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="page" width="{wide}" height="{high}"/>\n{_at(_PAD, _PAD, page)}\n</svg>\n'
    )


# --- what is shown


def _devices(host: Inventory) -> Iterator[Device]:
    yield from (gpu.device for gpu in host.gpus)
    yield from (port.device for port in host.rdma if port.device)
    yield from (each.device for each in host.interfaces if each.device)


def _cards(host: Inventory) -> dict[str, _Card]:
    """By PCI address, or by name where there is none. What is both a port and an interface is one."""
    cards: dict[str, _Card] = {}
    for i, gpu in enumerate(host.gpus):
        links = [
            f"{count} NVLinks to {_short(other)}" for other, count in gpu.links.items() if other != "switch"
        ]
        cards[gpu.device.pci] = _Card("gpu", f"GPU {i}: {gpu.name}", [_where(gpu.device), *links], False)
    for port in host.rdma:
        lines = [f"{port.spec} {port.link_layer}, {port.state}"]
        if port.device is None:
            cards[port.spec] = _Card("rdma", lines[0], [], not port.active)
        elif port.device.pci in cards:
            cards[port.device.pci].notes += lines
        else:
            cards[port.device.pci] = _Card("rdma", lines[0], [_where(port.device)], not port.active)
    for each in host.interfaces:
        if each.kind == "loopback":
            continue
        speed = [f"{each.speed_mbps / 1000:g} Gb/s"] if each.speed_mbps else []
        words = ([] if each.up else ["down"]) + (["default route"] if each.default_route else [])
        head = ", ".join([f"{each.name} ({each.kind})", *speed, *words])
        if each.device and each.device.pci in cards:
            cards[each.device.pci].notes += [head, *each.addresses]
        else:
            where = [_where(each.device)] if each.device else []
            key = each.device.pci if each.device else each.name
            cards[key] = _Card("net", head, [*where, *each.addresses], not each.up)
    return cards


def _where(device: Device) -> str:
    return f"at {_short(device.pci)}" + (f", PCIe {device.link_gbps:g} Gb/s" if device.link_gbps else "")


def _short(pci: str) -> str:
    return pci.removeprefix("0000:")


def _panel(
    host: Inventory, node: Numa | None, boxes: Mapping[str, Box], devices: Mapping[str, Device]
) -> Box | None:
    """A NUMA node with what is on it; None for what belongs to no one node."""
    here = [key for key in boxes if node_of(host, devices.get(key)) == (node.id if node else None)]
    if node is None and not here:
        return None
    paths = {key: devices[key].path if key in devices else (key,) for key in here}
    inner = list(_buses(paths, boxes))
    head = f"NUMA node {node.id}" if node else "not attached to a NUMA node"
    count = len(cpus_in(node.cpus)) if node else 0
    note = f"{count} CPUs ({node.cpus}), {size_text(node.memory_bytes)}" if node else ""
    return _frame("node", head, note, _columns(inner))


def _buses(paths: Mapping[str, tuple[str, ...]], boxes: Mapping[str, Box], depth: int = 0) -> Iterator[Box]:
    """What shares a bus is in one frame; a bridge with one thing behind it is not shown."""
    groups: dict[str, list[str]] = {}
    for key in sorted(paths, key=lambda each: paths[each]):
        groups.setdefault(paths[key][depth], []).append(key)
    for name, keys in groups.items():
        if len(keys) == 1:
            yield boxes[keys[0]]
            continue
        below = depth + 1
        while len({paths[key][below] for key in keys}) == 1:
            name = paths[keys[0]][below]
            below += 1
        inner = list(_buses({key: paths[key] for key in keys}, boxes, below))
        yield _frame("bus", _bus_name(name, keys), "", _stack(inner))


def _bus_name(name: str, keys: Iterable[str]) -> str:
    if len({key.rpartition(".")[0] for key in keys}) == 1:
        return f"one card, below {_short(name)}"
    return f"PCI root {name.removeprefix('pci')}" if name.startswith("pci") else f"PCIe switch {_short(name)}"


def _header(host: Inventory) -> Box:
    cpu, limits = host.cpu, host.limits
    quota = f", {cpu.quota:g} of them by its control group" if cpu.quota is not None else ""
    memlock = "unlimited" if limits.memlock_bytes is None else size_text(limits.memlock_bytes)
    lines = [
        f"{cpu.model or 'unknown processor'}, sockets: {cpu.sockets}, cores: {cpu.cores}",
        f"this process may use {usable_cores(cpu)} CPUs ({cpu.usable or 'unknown'}{quota})",
        f"/dev/shm {size_text(limits.shm_bytes)}, locked memory {memlock}",
    ]
    for name, one in (("UCX", host.ucx), ("UCC", host.ucc)):
        lines.append(f"{name} {one.version or '(not found)'}: {', '.join(one.modules) or 'no modules'}")
    top = _text("title", 0, 16, host.host)
    body = "".join(_text("note", 0, 36 + i * _LINE, line) for i, line in enumerate(lines))
    wide = max([_text_width(host.host, 18), *(_text_width(line, _SMALL) for line in lines)])
    return Box(wide, 30 + len(lines) * _LINE, top + body)


def _legend(kinds: set[str]) -> Box:
    body, x = "", 0
    for kind, name in _KINDS.items():
        if kind in kinds:
            body += f'<rect class="{kind}" x="{x}" y="2" width="10" height="10" rx="2"/>'
            body += _text("note", x + 15, 11, name)
            x += 15 + _text_width(name, _SMALL) + 2 * _GAP
    return Box(x, _LINE, body)


# --- boxes


def _card_box(card: _Card, width: int) -> Box:
    height = _PAD + _LINE * (1 + len(card.notes))
    texts = _text("head", _PAD, 18, card.head)
    texts += "".join(_text("note", _PAD, 18 + (i + 1) * _LINE, note) for i, note in enumerate(card.notes))
    rects = f'<rect class="card" width="{width}" height="{height}" rx="4"/>'
    rects += f'<rect class="{card.kind}" width="4" height="{height}" rx="2"/>'
    return Box(width, height, f'<g class="off">{rects}{texts}</g>' if card.is_off else rects + texts)


def _bar(text: str, width: int) -> Box:
    rect = f'<rect class="links" width="{width}" height="{2 * _PAD}" rx="4"/>'
    return Box(width, 2 * _PAD, rect + _text("head", _PAD, 16, text))


def _frame(kind: str, head: str, note: str, inner: Box) -> Box:
    top = _PAD + _LINE * (2 if note else 1)
    needed = max(_text_width(head, _BIG), _text_width(note, _SMALL))
    width = max(inner.width, needed) + 2 * _PAD
    height = top + inner.height + _PAD
    rect = f'<rect class="{kind}" width="{width}" height="{height}" rx="6"/>'
    texts = _text("head" if kind == "node" else "note", _PAD, 18, head)
    if note:
        texts += _text("note", _PAD, 18 + _LINE, note)
    return Box(width, height, rect + texts + _at(_PAD, top, inner))


def _columns(boxes: Sequence[Box], count: int = 2) -> Box:
    """Each below the others of the column that has most room."""
    columns: list[list[Box]] = [[] for _ in range(count)]
    for box in boxes:
        min(columns, key=_height).append(box)
    body, x = "", 0
    for column in filter(None, columns):
        y = 0
        for box in column:
            body += _at(x, y, box)
            y += box.height + _GAP
        x += max(box.width for box in column) + _GAP
    return Box(max(0, x - _GAP), max(map(_height, columns)), body)


def _height(column: Sequence[Box]) -> int:
    return sum(box.height for box in column) + _GAP * max(0, len(column) - 1)


def _stack(boxes: Sequence[Box]) -> Box:
    return _columns(boxes, 1)


def _at(x: int, y: int, box: Box) -> str:
    return f'\n<g transform="translate({x},{y})">{box.body}</g>'


def _text(kind: str, x: int, y: int, text: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def _text_width(text: str, size: int) -> int:
    return round(len(text) * size * _WIDE)
