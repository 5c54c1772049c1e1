"""What `torch-ucc record` counts, how it publishes the counts, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import prometheus
import pytest
from test_diagnosis import Rank, job
from torch_ucc.status import history
from torch_ucc.status.meter import BOUNDS_S, Meter, PrometheusFile
from torch_ucc.tracing.records import Group

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""By name and labels."""


def played() -> list[Rank]:
    """Rank 1 comes 2 ms later than rank 0, which waits for it; then an operation of rank 0 fails."""
    ranks = job(2)
    ranks[0].call("all_reduce", elements=1 << 20, after=0, takes=5_000_000, awaited_after=1_000)
    ranks[1].call("all_reduce", elements=1 << 20, after=2_000_000, takes=3_000_000, awaited_after=0)
    ranks[0].call("all_reduce", takes=500, state="failed", result="timeout")
    return ranks


def seen(meter: Meter, ranks: list[Rank], world: str = "w") -> None:
    """The meter sees the operations of all ranks."""
    dumps = [rank.dump() for rank in ranks]
    for dump in dumps:
        meter.joins(world, dump.rank)
    for dump in dumps:
        meter.see(world, dump.rank, dump.groups, dump.records)


def values(text: str) -> Values:
    return {
        (name, frozenset(labels.items())): value
        for name, labels, value in prometheus.samples(text, "counter|histogram")
    }


def counted(ranks: list[Rank]) -> Values:
    meter = PrometheusFile(Path("unused"))
    seen(meter, ranks)
    return values(meter.text())


def of(found: Values, name: str, **labels: str) -> float:
    """The sum of the values that have these labels."""
    wanted = labels.items()
    return sum(value for (each, has), value in found.items() if each == name and wanted <= dict(has).items())


def test_operations_are_counted_by_rank_size_and_time() -> None:
    found = counted(played())
    for rank, seconds in (("0", 0.005), ("1", 0.003)):
        large = {"rank": rank, "op": "all_reduce", "group": "world", "size": "16M"}
        assert of(found, "torch_ucc_operation_seconds_count", **large) == 1
        assert of(found, "torch_ucc_operation_seconds_sum", **large) == pytest.approx(seconds)
        assert of(found, "torch_ucc_operation_seconds_bucket", **large, le="0.001") == 0
        assert of(found, "torch_ucc_operation_seconds_bucket", **large, le="0.01") == 1
        assert of(found, "torch_ucc_operation_seconds_bucket", **large, le="+Inf") == 1
        assert of(found, "torch_ucc_operation_bytes_total", **large) == 4 << 20
    assert of(found, "torch_ucc_operation_failures_total", rank="0", size="4K") == 1
    assert of(found, "torch_ucc_operation_failures_total") == 1


def test_the_rank_that_came_last_kept_the_others_waiting() -> None:
    found = counted(played())
    assert of(found, "torch_ucc_kept_waiting_seconds_total", rank="1") == pytest.approx(0.002, rel=0.01)
    assert of(found, "torch_ucc_kept_waiting_seconds_total", rank="0") == 0


def test_groups_with_one_name_in_two_contexts_are_not_taken_for_one() -> None:
    """Each rank has called an operation with the same number, but in another context."""
    ranks = played()
    meter = PrometheusFile(Path("unused"))
    for rank, world in zip(ranks, ("v", "w"), strict=True):
        for each in (0, 1):
            meter.joins(world, each)
        meter.see(world, rank.rank, rank.dump().groups, rank.records)
    found = values(meter.text())
    assert of(found, "torch_ucc_operation_seconds_count") == sum(len(rank.records) for rank in ranks)
    assert of(found, "torch_ucc_kept_waiting_seconds_total") == 0


def test_a_name_with_quotes_can_be_read_back() -> None:
    (rank,) = job(1)
    rank.call("barrier")
    meter = PrometheusFile(Path("unused"))
    meter.see("w", 0, {1: Group(1, 'a "b"\\\n', 0, (0,))}, rank.records)
    count = of(values(meter.text()), "torch_ucc_operation_seconds_count", group='a \\"b\\"\\\\\\n')
    assert count == len(rank.records)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    meter = PrometheusFile(tmp_path / "ucc.prom")
    seen(meter, played())
    meter.close()
    assert values((tmp_path / "ucc.prom").read_text()) == counted(played())
    assert [each.name for each in tmp_path.iterdir()] == ["ucc.prom"]


def points(data: Any) -> Iterator[tuple[str, dict[str, str], float]]:
    """What a reader of the SDK got, as Prometheus names it."""
    for metric in (
        each for of in data.resource_metrics for scope in of.scope_metrics for each in scope.metrics
    ):
        for point in metric.data.data_points:
            if hasattr(point, "value"):
                yield f"{metric.name}_total", point.attributes, point.value
                continue
            assert point.explicit_bounds == BOUNDS_S
            edges = [*(f"{each:g}" for each in point.explicit_bounds), "+Inf"]
            for i, edge in enumerate(edges):
                below = sum(point.bucket_counts[: i + 1])
                yield f"{metric.name}_bucket", {**point.attributes, "le": edge}, below
            yield f"{metric.name}_sum", point.attributes, point.sum
            yield f"{metric.name}_count", point.attributes, point.count


def test_opentelemetry_gets_the_same_values_under_the_same_names() -> None:
    export = pytest.importorskip("opentelemetry.sdk.metrics.export", reason="opentelemetry-sdk is missing")
    from torch_ucc.status.otel import OpenTelemetry

    reader = export.InMemoryMetricReader()
    meter = OpenTelemetry([reader])
    seen(meter, played())
    got = {
        (name, frozenset(labels.items())): value for name, labels, value in points(reader.get_metrics_data())
    }
    meter.close()
    wanted = counted(played())
    assert got.keys() == wanted.keys()
    assert got == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ({}, "otlp_proto_http"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp_proto_grpc"),
        ({"OTEL_METRICS_EXPORTER": "console,nonsense"}, "nonsense"),
    ],
)
def test_an_exporter_that_is_not_installed_is_named(
    setting: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is missing")
    from torch_ucc.status import otel

    monkeypatch.setattr(otel, "entry_points", lambda **_: [])
    if "console" in setting.get("OTEL_METRICS_EXPORTER", ""):
        monkeypatch.undo()
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LookupError, match=f"has the exporter {wanted}:"):
        list(otel.readers())


@pytest.fixture
def dashboard(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert history.main(["--dashboard"]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def targets(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [target for panel in dashboard["panels"] for target in panel["targets"]]


def test_the_dashboard_shows_metrics_and_labels_that_are_written_and_no_others(
    dashboard: dict[str, Any],
) -> None:
    written: dict[str, set[str]] = {}
    for name, labels in counted(played()):
        written.setdefault(name, set()).update(label for label, _ in labels)
    shown = set()
    for target in targets(dashboard):
        expression = target["expr"]
        names = re.findall(r"torch_ucc_\w+", expression)
        assert names and written.keys() >= {*names}, expression
        shown.update(names)
        has = set.intersection(*(written[name] for name in names))
        chosen = set(re.findall(r"(\w+)=~", expression))
        by = {each for part in re.findall(r"by \(([^)]*)\)", expression) for each in part.split(", ")}
        assert chosen | by <= has, expression
        told = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert told <= (by or has), expression
    assert shown == written.keys()
    asked = [each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    for each in asked:
        ((name, label),) = re.findall(r"^label_values\((\w+), (\w+)\)$", each)
        assert label in written[name]


def test_the_dashboard_has_what_grafana_needs(dashboard: dict[str, Any]) -> None:
    assert dashboard["title"] and dashboard["uid"] and dashboard["schemaVersion"] >= 36
    assert {"time", "templating", "panels", "annotations"} <= dashboard.keys()
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {"__rate_interval", "__range", "__all"}
    assert used == variables
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = set()
    for panel in dashboard["panels"]:
        assert panel["title"] and panel["description"] and panel["targets"]
        assert panel["type"] in ("timeseries", "bargauge", "heatmap")
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        covers = {
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        }
        assert covers and not places & covers
        places |= covers


def test_the_brackets_of_each_expression_are_closed(dashboard: dict[str, Any]) -> None:
    for target in targets(dashboard):
        depths = [0]
        for character in target["expr"]:
            depths.append(depths[-1] + (character in "({[") - (character in ")}]"))
        assert depths[-1] == 0 and all(b >= 0 for _, b in pairwise(depths)), target["expr"]
