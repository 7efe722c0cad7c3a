"""The Responses API: requests per second compared with AIPerf 0.13.0, and the time to parse a stream and to draw images.

    python -m benchmarks.responses

A reply of 100 tokens has 22 KB, compared with 18 KB in chat completions, because every event has a sequence number. The
target is the same as for chat completions.
"""

from __future__ import annotations

import timeit
from functools import partial
from typing import Literal

from benchmarks.far_end import line
from benchmarks.throughput import run

_IMAGES = 1000
_MAX_IMAGES_S = 10.0
_MAX_PARSING_US = 100.0


def _stream(tokens: int) -> bytes:
    """Return a stream as vLLM sends it: in each event the text comes before the sequence number, and both differ."""
    delta = (
        'event: response.output_text.delta\ndata: {{"content_index":0,"delta":" token{text}","item_id":"msg_{item}",'
        '"logprobs":[],"output_index":0,"sequence_number":{number},"type":"response.output_text.delta"}}\n\n'
    )
    parts = [delta.format(text=number % 7, item="0" * 32, number=number + 4) for number in range(tokens)]
    end = 'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed","output":[]}}\n\n'
    return "".join([*parts, end]).encode()


def parsing() -> bool:
    from penstock.endpoints.responses import Responses

    body, read = _stream(100), Responses().read_stream
    assert len(read(body, timed=True).texts) == 100
    took = min(timeit.repeat(lambda: read(body, timed=False), number=200, repeat=20)) / 200 * 1e6
    passed = took <= _MAX_PARSING_US
    line("parsing a stream of 100 deltas", f"{took:.0f} µs", f"at most {_MAX_PARSING_US:.0f} µs", "", passed)
    return passed


def images() -> bool:
    from penstock.datasets.media.images import images as draw_images
    from penstock.settings.schema import ImageSettings

    passed = True
    formats: tuple[Literal["jpeg", "png"], ...] = ("jpeg", "png")
    for image_format in formats:
        settings = ImageSettings(width_mean=512, height_mean=512, format=image_format)
        took = timeit.timeit(partial(draw_images, settings, 1, _IMAGES), number=1)
        name = f"{_IMAGES:,} different {image_format.upper()} images of 512 x 512"
        line(name, f"{took:.1f} s", f"at most {_MAX_IMAGES_S:.0f} s", "", took <= _MAX_IMAGES_S)
        passed = passed and took <= _MAX_IMAGES_S
    return passed


def main() -> bool:
    throughput_reached = run(True, 40_000, ("--endpoint-type", "responses"), "responses, ")
    return all([throughput_reached, parsing(), images()])


if __name__ == "__main__":
    raise SystemExit(not main())
