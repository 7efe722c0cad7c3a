"""Images and audio of a request: how many, and how fast the server handles them."""

from __future__ import annotations

from penstock.metrics.metric import Measures, MetricGroup, TokenCounts, per_request
from penstock.metrics.reply_values import latency_ns
from penstock.records.record import Record

__all__ = ["GROUP"]

_METRICS = (
    per_request(
        "num_images",
        "Number of Images",
        "images",
        "Images in the request, or those that an image generation returned. Unknown, and so absent, for replayed bodies.",
        larger=True,
    ),
    per_request(
        "image_throughput",
        "Image Throughput",
        "images/sec",
        "num_images / request_latency.",
        order=860,
        larger=True,
    ),
    per_request("image_latency", "Image Latency", "ms/image", "request_latency / num_images.", order=861),
    per_request(
        "audio_duration",
        "Audio Duration",
        "sec",
        "Length of the audio in the request. Absent for URLs and replayed bodies, and without the extra media for formats "
        "other than WAV.",
    ),
    per_request(
        "rtfx",
        "Inverse Real-Time Factor (RTFx)",
        "ratio",
        "audio_duration / request_latency: seconds of audio that the server handles per second.",
        order=850,
        larger=True,
    ),
)


def _measure(record: Record, counts: TokenCounts, measures: Measures) -> None:
    del counts
    values, latency = measures.values, latency_ns(record)
    if record.images:
        values["num_images"] = record.images
        if latency > 0:
            values["image_throughput"] = record.images * 1e9 / latency
            values["image_latency"] = latency / 1e6 / record.images
    if record.audio_seconds:
        values["audio_duration"] = record.audio_seconds
        if latency > 0:
            values["rtfx"] = record.audio_seconds * 1e9 / latency


GROUP = MetricGroup(_METRICS, measure=_measure)
