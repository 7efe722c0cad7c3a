"""Images and audio of a request: how many, and how fast the server handles them."""

from __future__ import annotations

from penstock.metrics.batch import Batch, CountColumns, MeasureTable
from penstock.metrics.metric import MetricGroup, read_metrics

_METRICS = read_metrics("""\
num_images | Number of Images | images | larger
    Images in the request, or those that an image generation returned. Unknown, and so absent, for replayed bodies.
image_throughput | Image Throughput | images/sec | order=860 larger
    num_images / request_latency.
image_latency | Image Latency | ms/image | order=861
    request_latency / num_images.
audio_duration | Audio Duration | sec
    Length of the audio in the request. Absent for URLs and replayed bodies, and without the extra media for formats
    other than WAV.
rtfx | Inverse Real-Time Factor (RTFx) | ratio | order=850 larger
    audio_duration / request_latency: seconds of audio that the server handles per second.
""")


def _measure(batch: Batch, counts: CountColumns, table: MeasureTable) -> None:
    del counts
    latency = batch.latency
    images, audio = batch.get("images"), batch.get("audio_seconds")
    shown = batch.succeeded & (images != 0)
    table.put("num_images", images, shown, whole=True)
    table.put("image_throughput", images * 1e9 / latency, shown & (latency > 0))
    table.put("image_latency", latency / 1e6 / images, shown & (latency > 0))
    heard = batch.succeeded & (audio != 0)
    table.put("audio_duration", audio, heard)
    table.put("rtfx", audio * 1e9 / latency, heard & (latency > 0))


GROUP = MetricGroup(_METRICS, measure_batch=_measure)
