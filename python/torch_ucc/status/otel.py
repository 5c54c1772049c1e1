"""Publishes counts of operations by the SDK of OpenTelemetry.

The environment says where to, by the variables of the SDK: OTEL_METRICS_EXPORTER,
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_METRIC_EXPORT_INTERVAL, OTEL_RESOURCE_ATTRIBUTES and so on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import entry_points, version

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

from torch_ucc.status.meter import (
    BOUNDS_S,
    BYTES,
    FAILURES,
    HELP,
    KEPT_WAITING,
    SECONDS,
    Key,
    Labels,
    Meter,
    labels_of,
)

_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""The exporter for each value of OTEL_EXPORTER_OTLP_PROTOCOL."""


class OpenTelemetry(Meter):
    """A thread of the SDK exports the counts from time to time, and once more when this is closed."""

    def __init__(self, readers: Sequence[MetricReader]) -> None:
        super().__init__()
        self._provider = MeterProvider(readers)
        meter = self._provider.get_meter("torch_ucc", version("torch-ucc"))
        self._seconds = meter.create_histogram(
            SECONDS, "s", HELP[SECONDS], explicit_bucket_boundaries_advisory=BOUNDS_S
        )

        def count(name: str, unit: str, values: Callable[[], Iterable[tuple[Labels, float]]]) -> None:
            def observe(_: CallbackOptions) -> list[Observation]:
                return [Observation(value, labels) for labels, value in values()]

            meter.create_observable_counter(name, [observe], unit, HELP[name])

        count(BYTES, "By", lambda: ((labels, each.bytes) for labels, each in self.times()))
        count(FAILURES, "{operation}", lambda: ((labels, each.failed) for labels, each in self.times()))
        count(KEPT_WAITING, "s", self.kept_waiting)

    def close(self) -> None:
        self._provider.shutdown()

    def _took(self, key: Key, seconds: float) -> None:
        self._seconds.record(seconds, labels_of(key))


def readers() -> Iterator[MetricReader]:
    """Those that the environment asks for. Raises LookupError if no installed package has one of them."""
    for name in (os.environ.get("OTEL_METRICS_EXPORTER") or "otlp").split(","):
        wanted = _otlp() if name.strip() == "otlp" else name.strip()
        found = [*entry_points(group="opentelemetry_metrics_exporter", name=wanted)]
        if not found:
            raise LookupError(
                f"no installed package has the exporter {wanted}: `pip install opentelemetry-exporter-otlp`, "
                "or name another one in OTEL_METRICS_EXPORTER"
            )
        made = found[0].load()()
        yield made if isinstance(made, MetricReader) else PeriodicExportingMetricReader(made)


def _otlp() -> str:
    asked = (os.environ.get(f"OTEL_EXPORTER_OTLP_{which}PROTOCOL") for which in ("METRICS_", ""))
    protocol = next(filter(None, asked), "http/protobuf")
    return _PROTOCOLS.get(protocol, protocol)
