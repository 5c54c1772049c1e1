"""`torch-ucc topo --svg`: what is drawn, and that it can be seen."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jobs import HERE
from machines import MACHINES
from renew import DRAWN
from torch_ucc import cli
from torch_ucc.topology.drawing import svg
from torch_ucc.topology.inventory import Inventory, from_json

NAMESPACE = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def machine(name: str) -> Inventory:
    return from_json((HERE / "machines" / f"{name}.json").read_text())


def drawn(name: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg(machine(name)))


def rectangles(
    element: ElementTree.Element, kinds: set[str], x: float = 0, y: float = 0
) -> list[tuple[str, Rectangle]]:
    """Those of these kinds with their place on the page: left, upper, right, lower."""
    if moved := re.fullmatch(r"translate\((\d+),(\d+)\)", element.get("transform", "")):
        x, y = x + int(moved[1]), y + int(moved[2])
    found = []
    if element.tag == f"{NAMESPACE}rect" and element.get("class") in kinds:
        left, upper = x + float(element.get("x", 0)), y + float(element.get("y", 0))
        wide, high = float(element.get("width", 0)), float(element.get("height", 0))
        found.append((element.get("class", ""), (left, upper, left + wide, upper + high)))
    return found + [each for child in element for each in rectangles(child, kinds, x, y)]


def overlap(one: Rectangle, other: Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def inside(one: Rectangle, other: Rectangle) -> bool:
    return other[0] <= one[0] and other[1] <= one[1] and one[2] <= other[2] and one[3] <= other[3]


@pytest.mark.parametrize("name", MACHINES)
def test_nothing_is_on_top_of_something_else(name: str) -> None:
    page = drawn(name)
    size = (0.0, 0.0, float(page.get("width", 0)), float(page.get("height", 0)))
    every = rectangles(page, {"card", "bus", "node", "links"})
    assert all(inside(place, size) for _, place in every)
    for (kind, one), (other_kind, other) in itertools.combinations(every, 2):
        apart = not overlap(one, other)
        assert apart or (kind != other_kind and (inside(one, other) or inside(other, one))), (one, other)
    nodes = [place for kind, place in every if kind == "node"]
    assert all(any(inside(place, node) for node in nodes) for kind, place in every if kind in ("card", "bus"))


@pytest.mark.parametrize("name", MACHINES)
def test_everything_is_named(name: str) -> None:
    host = machine(name)
    texts = "\n".join(drawn(name).itertext())
    for gpu in host.gpus:
        assert gpu.name in texts and gpu.device.pci.removeprefix("0000:") in texts
    for port in host.rdma:
        assert f"{port.spec} {port.link_layer}" in texts
    for each in host.interfaces:
        assert (f"{each.name} ({each.kind})" in texts) == (each.kind != "loopback")
        assert all(address in texts for address in each.addresses)
    for node in host.numa:
        assert f"NUMA node {node.id}" in texts


def test_a_switch_holds_what_is_behind_it() -> None:
    """A GPU and the port beside it are in one frame, as they are PIX to each other."""
    page = drawn("dgx_h100")
    buses = [each for each in page.iter(f"{NAMESPACE}g") if _is_bus(each)]
    held = [" ".join(bus.itertext()) for bus in buses]
    assert any("PCIe switch be:00.0" in text and "mlx5_9:1" in text and "GPU 5" in text for text in held)
    assert any("one card" in text and "mlx5_1:1" in text and "mlx5_2:1" in text for text in held)
    assert not any("mlx5_9:1" in text and "GPU 4" in text for text in held)


def _is_bus(group: ElementTree.Element) -> bool:
    return len(group) > 0 and group[0].get("class") == "bus"


def test_what_is_down_is_faint() -> None:
    faint = [" ".join(each.itertext()) for each in drawn("dgx_h100").iter() if each.get("class") == "off"]
    docker, port = sorted(faint)
    assert docker.startswith("docker0 (bridge), down") and "mlx5_8:1 Ethernet, not connected" in port


def test_a_name_may_have_any_letters() -> None:
    text = (HERE / "machines" / "small_vm.json").read_text().replace('"vm1"', '"<b>&\\"x"')
    assert '<b>&"x' in "".join(ElementTree.fromstring(svg(from_json(text))).itertext())


def test_it_is_what_was_looked_at(tmp_path: Path) -> None:
    """The golden picture, drawn by the command."""
    file = tmp_path / "here.svg"
    assert cli.main(["topo", "--replay", str(HERE / "machines" / f"{DRAWN}.json"), "--svg", str(file)]) == 0
    assert file.read_text() == (HERE / "drawn.svg").read_text()
