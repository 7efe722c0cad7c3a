"""Synthetic images: real PNG and JPEG files, all different, the same for the same seed.

Noise is the worst case of both formats: 512 x 512 pixels take 790 KB as PNG and 200 KB as JPEG, where a photo has 60
KB. So a JPEG is a smooth pattern and a PNG a mosaic. Measured on one core: 3 ms and 60 KB for a JPEG, 9 ms and 72 KB
for a PNG.
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable
from hashlib import shake_128

from penstock.datasets.conversation import Media
from penstock.datasets.media.generate import generate
from penstock.datasets.random_streams import length, stream
from penstock.extras import require_extra
from penstock.settings.schema import ImageSettings, NumberDistribution

_MAX_SIDE = 65_500
"""Pixels; the limit of JPEG."""
_SMOOTH_CELL, _MOSAIC_CELL = 8, 4
"""Pixels between two colours of the pattern."""
_QUALITY = 85
_SECONDS_PER_PIXEL = 1.5e-8
"""An estimate for JPEG; a PNG takes about twice as long."""


def images(
    settings: ImageSettings,
    seed: int,
    count: int,
    progress: Callable[[int, int], None] | None = None,
    distribution: Callable[[str], NumberDistribution | None] = lambda _: None,
) -> list[Media]:
    """Return `count` different images, or fewer if they would take too much time or memory."""
    require_extra("media", "A synthetic image", "PIL")
    widths, heights, formats = (stream(seed, f"image {part}") for part in ("widths", "heights", "formats"))
    width_of = settings.width_mean, settings.width_stddev, distribution("images.width_mean")
    height_of = settings.height_mean, settings.height_stddev, distribution("images.height_mean")
    specs = []
    for number in range(count):
        width = min(length(widths, *width_of), _MAX_SIDE)
        height = min(length(heights, *height_of), _MAX_SIDE)
        format_ = settings.format
        if format_ == "random":
            format_ = "png" if formats.random() < 0.5 else "jpeg"
        specs.append((f"{seed}/image/{number}", width, height, format_))
    return generate(specs, _image, lambda spec: spec[1] * spec[2] * _SECONDS_PER_PIXEL, progress)


def _image(spec: tuple[str, int, int, str]) -> Media:
    key, width, height, format_ = spec
    data = draw_png(key, width, height) if format_ == "png" else draw_jpeg(key, width, height)
    return Media(f"data:image/{format_};base64,{b64encode(data).decode()}", format_)


def draw_jpeg(key: str, width: int, height: int) -> bytes:
    from PIL.Image import Resampling

    return _draw(key, width, height, _SMOOTH_CELL, Resampling.BILINEAR, "JPEG", quality=_QUALITY)


def draw_png(key: str, width: int, height: int) -> bytes:
    from PIL.Image import Resampling

    return _draw(key, width, height, _MOSAIC_CELL, Resampling.NEAREST, "PNG", compress_level=1)


def _draw(key: str, width: int, height: int, cell: int, resampling: int, format_: str, **options: int) -> bytes:
    """Enlarge a few colours. They are a hash of the key, so that they are the same on every machine."""
    from PIL import Image

    columns, rows = max(2, -(-width // cell)), max(2, -(-height // cell))
    colours = shake_128(key.encode()).digest(columns * rows * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", (columns, rows), colours).resize((width, height), resampling).save(file, format_, **options)
    return file.getvalue()
