"""A receiver of OTLP/HTTP metrics, which decodes the protobuf of each export."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from support.http_server import HttpReply, HttpRequest, HttpServer


class HistogramPoint(NamedTuple):
    attributes: dict[str, Any]
    count: int
    sum: float
    buckets: list[int]


class Export(NamedTuple):
    path: str
    resource: dict[str, Any]
    start_ns: set[int]
    metrics: dict[str, list[HistogramPoint]]

    def count(self, metric: str, **attributes: Any) -> int:
        """Return the number of values of a metric whose attributes have these values; a dot is written as two underscores."""
        return sum(point.count for point in self._points(metric, attributes))

    def sum(self, metric: str, **attributes: Any) -> float:
        return sum(point.sum for point in self._points(metric, attributes))

    def _points(self, metric: str, attributes: dict[str, Any]) -> list[HistogramPoint]:
        wanted = {name.replace("__", "."): value for name, value in attributes.items()}
        return [
            point
            for point in self.metrics.get(metric, [])
            if all(point.attributes.get(name) == value for name, value in wanted.items())
        ]


class OtlpReceiver(HttpServer):
    def __init__(self, status: int = 200) -> None:
        super().__init__(lambda _request, _number: HttpReply(status=status))

    @property
    def exports(self) -> list[Export]:
        """The exports so far, without those of a sender that was killed before their end."""
        requests = list(self.received)
        return [_decode(each) for each in requests if len(each.body) == int(each.header_values["content-length"])]


def _decode(request: HttpRequest) -> Export:
    message = ExportMetricsServiceRequest.FromString(request.body)
    (resource,) = message.resource_metrics
    (scope,) = resource.scope_metrics
    metrics: dict[str, list[HistogramPoint]] = defaultdict(list)
    starts = set()
    for metric in scope.metrics:
        for point in metric.histogram.data_points:
            assert point.count == sum(point.bucket_counts)
            starts.add(point.start_time_unix_nano)
            metrics[metric.name].append(
                HistogramPoint(_values(point.attributes), point.count, point.sum, list(point.bucket_counts))
            )
    return Export(request.path, _values(resource.resource.attributes), starts, metrics)


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
