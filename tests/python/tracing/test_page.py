"""The timeline, opened in a browser: it shows what the text says."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import browser
import pytest
import torch
import torch_ucc
from test_diagnosis import job
from torch import nn
from torch_ucc.testing import run_ranks
from torch_ucc.tracing import iterations, page, records, text, timeline
from torch_ucc.tracing.records import Dump

RANKS = 8

needs_browser = pytest.mark.skipif(
    browser.find() is None, reason="there is no headless browser: Debian's is chromium-headless-shell"
)

# Goes to each box in turn, as far as it takes to see it, and points at its middle.
LOOK = """
const paper = canvas.getContext("2d"), place = canvas.getBoundingClientRect(), written = {};
const act = (kind, x, y, more = {}) => {
  const event = kind === "wheel" ? WheelEvent : kind.startsWith("pointer") ? PointerEvent : MouseEvent;
  const where = {clientX: place.left + x, clientY: place.top + y};
  canvas.dispatchEvent(new event(kind, {...where, cancelable: true, ...more}));
};
const grey = pixels => pixels.every((value, i) => i % 4 === 3 || value === pixels[i - i % 4]);
const drawn = () => canvas.getAttribute("aria-label");
const write = paper.fillText.bind(paper);
paper.fillText = (text, x, y) => { written[text] = y; write(text, x, y); };

const whole = drawn(), wrong = [], boxes = lanes.flatMap(lane => lane.boxes);
for (const box of boxes) {
  const {lane, start, length} = box, text = textOf(box);
  show(start - 2 * length, start + 3 * length);
  const middle = x(start + length / 2);
  const ys = [...Array(canvas.clientHeight).keys()].filter(y => boxAt(middle, y) === box);
  const y = ys[Math.floor(ys.length / 2)];
  act("pointermove", middle, y);
  if (tip.style.display !== "block" || tip.textContent !== text) wrong.push("tip of " + text);
  const below = Math.abs(y - written["rank " + lane.rank]);
  if (!(below <= heightOf(lane) / 2)) wrong.push("lane of " + text);
  if (grey(paper.getImageData(middle, y, 1, 1).data)) wrong.push("not painted: " + text);
}
act("dblclick", 100, 40);
const again = drawn();
for (let i = 0; i < 60; ++i) act("wheel", canvas.clientWidth - 10, 40, {deltaY: -1});
return {
  whole, again, wrong, zoomed: drawn(), tips: boxes.map(box => [box.lane.rank, textOf(box)]),
  labels: Object.keys(written).filter(text => text.startsWith("rank ")),
  report: document.getElementById("report").textContent,
  legend: [...document.querySelectorAll("#legend span")].map(each => each.textContent),
  size: [canvas.clientWidth, canvas.clientHeight, canvas.width, canvas.height],
  fits: document.documentElement.scrollWidth <= innerWidth,
};
"""

TIP = re.compile(
    r"\w+\((?:\w+\[\d+\].*)?\) seq \d+ of group \S+, rank \d+\n"
    r"[\d.]+ (?:us|ms|s)(?:, .* of this time until rank \d called the operation)?"
    r"; [\d.]+ [KMG]?B, memory, completed\nby .*"
)


def rendered(dumps: list[Dump]) -> tuple[str, str]:
    """The page, and the text of the same trace."""
    entries = timeline.merge(dumps)
    found = iterations.iterations(dumps, entries)
    return page.render(entries, 0, found), text.report(entries, 0, found)


def train(path: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(4)]
    model = nn.Sequential(*layers, nn.BatchNorm1d(64))
    with torch_ucc.trace(path):
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(4, 64)).sum().backward()
            optimizer.step()


@needs_browser
@pytest.mark.multirank
def test_the_page_of_a_ddp_run_shows_what_the_text_says(tmp_path: Path) -> None:
    run_ranks(train, RANKS, tmp_path / "run", timeout=300)
    dumps = records.load(tmp_path / "run")
    shown, told = rendered(dumps)
    said, errors = browser.ask(shown, LOOK, tmp_path)
    assert errors == []

    count = int(told.split()[0])
    assert count == sum(len(dump.records) for dump in dumps) > RANKS * 10
    assert said["whole"] == f"timeline: {RANKS} ranks, {count} operations" == said["again"]
    assert said["wrong"] == []
    assert sorted(said["labels"]) == [f"rank {rank}" for rank in range(RANKS)]
    assert 0 < int(said["zoomed"].split()[-2]) < count
    assert said["report"] == told and "3 iterations" in told
    assert said["size"][0] == said["size"][2] > 1000 and said["size"][1] == said["size"][3] and said["fits"]

    assert said["legend"][:-1] == sorted({record.op for dump in dumps for record in dump.records})
    assert all(TIP.match(tip) for _, tip in said["tips"])
    for dump in dumps:
        described = sorted(record.describe() for record in dump.records)
        assert sorted(tip.split(" seq ")[0] for rank, tip in said["tips"] if rank == dump.rank) == described
    assert any("gradient bucket of DDP's reducer" in tip for _, tip in said["tips"])


@needs_browser
def test_operations_at_the_same_time_lie_in_levels_and_all_can_be_pointed_at(tmp_path: Path) -> None:
    ranks = job(2)
    for rank in ranks:
        for _ in range(3):
            began = rank.now
            rank.call("all_reduce", after=100, takes=5000, elements=1 << 20)
            rank.now = began
        rank.now += 6000
        rank.call("broadcast", root=1, after=1000 * rank.rank)
    shown, told = rendered([rank.dump() for rank in ranks])
    said, errors = browser.ask(shown, LOOK, tmp_path)
    assert errors == [] and said["whole"] == "timeline: 2 ranks, 14 operations" and told.startswith("14 ")
    assert said["wrong"] == []
    assert sum("until rank 1 called the operation" in tip for _, tip in said["tips"]) == 1


def test_levels_are_no_more_than_run_at_once() -> None:
    ranks = job(1)
    began = ranks[0].now
    ranks[0].call("all_reduce", takes=5000)
    ranks[0].now = began
    ranks[0].call("all_reduce", takes=2000)
    ranks[0].call("all_reduce", takes=1000)
    data = page.data(timeline.merge([ranks[0].dump()]), ())
    (lane,) = data["lanes"]
    assert lane["boxes"][0::7] == [0, 0, 0, 0, 1, 1]
    assert (lane["rank"], lane["levels"], lane["steps"]) == (0, 2, [])


def test_of_more_operations_than_a_page_can_show_it_shows_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = job(1)
    for takes in (5000, 2000, 7000, 1500, 6000):
        ranks[0].call("all_reduce", takes=takes)
    monkeypatch.setattr(page, "MOST", 3)
    data = page.data(timeline.merge([ranks[0].dump()]), ())
    (lane,) = data["lanes"]
    assert lane["boxes"][4::7] == [5000, 7000, 6000]
    assert data["left_out"] == len(ranks[0].records) - 3


MANY = 256
CALLS = 12

# What is written, in the order of time and of ranks; how high it is; what is said of a lane without a box.
OVERVIEW = """
const paper = canvas.getContext("2d"), place = canvas.getBoundingClientRect(), times = [], ranks = [];
const write = paper.fillText.bind(paper);
paper.fillText = (text, x, y) => {
  const width = paper.measureText(text).width;
  const left = paper.textAlign === "right" ? x - width : paper.textAlign === "center" ? x - width / 2 : x;
  if (text.startsWith("rank ")) ranks.push([text, left, left + width, y]);
  else times.push([text, left, left + width]);
  write(text, x, y);
};
draw();
paper.fillText = write;
const lane = lanes[77], at = {clientX: place.left + 5, clientY: place.top + lane.top + heightOf(lane) / 2};
canvas.dispatchEvent(new PointerEvent("pointermove", at));
const slider = document.querySelector("#legend input");
const found = {
  times, ranks, pointed: tip.textContent, high: canvas.clientHeight, wide: canvas.clientWidth,
  label: canvas.getAttribute("aria-label"), fits: document.documentElement.scrollWidth <= innerWidth,
};
slider.value = slider.max; slider.dispatchEvent(new Event("input"));
return {...found, highest: canvas.height};
"""


@needs_browser
@pytest.mark.parametrize("width", [1400, 390])
def test_many_ranks_fit_a_page_and_no_labels_overlap(tmp_path: Path, width: int) -> None:
    ranks = job(MANY)
    for i in range(CALLS):
        for rank in ranks:
            rank.call("all_reduce", after=1000 * (1 + (rank.rank + i) % 7), takes=9000)
    count = sum(len(rank.records) for rank in ranks)
    shown, told = rendered([rank.dump() for rank in ranks])
    assert len(shown) < len(told) + 50 * count
    said, errors = browser.ask(shown, OVERVIEW, tmp_path, width)
    assert errors == []
    assert said["label"] == f"timeline: {MANY} ranks, {count} operations"
    assert said["fits"] and said["high"] < 1000 and said["pointed"] == "rank 77"
    assert said["high"] < said["highest"] <= 16000
    assert len(said["times"]) > 1
    for (_, _, right), (_, left, _) in pairwise(said["times"]):
        assert right < left
    assert len(said["ranks"]) > 20 and said["ranks"][0][0] == "rank 0"
    for _, left, right, _ in said["ranks"]:
        assert left >= 0 and right < 76
    for (_, _, _, above), (_, _, _, below) in pairwise(said["ranks"]):
        assert below - above >= 12
