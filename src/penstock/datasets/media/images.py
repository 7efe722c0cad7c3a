"""Synthetic images: real files, each unlike the others, the same for the same seed.

Noise would be quick to draw, but it is the worst case of both formats: 790 KB as PNG, 200 KB as JPEG, where a photo of
512 x 512 pixels has 60 and a drawing as much. So a JPEG is a soft pattern, and a PNG a mosaic; measured on one core, 3 ms
and 60 KB, and 5 ms and 64 KB.
"""

from __future__ import annotations

import io
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable
from hashlib import shake_128
from typing import TYPE_CHECKING

from penstock.datasets.conversation import Media
from penstock.datasets.media.generate import make
from penstock.datasets.random_streams import length, stream
from penstock.extras import require_extra
from penstock.settings.schema import ImageSettings

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["draw_jpeg", "draw_png", "images"]

_LARGEST = 65_500
"""Pixels that a side of a JPEG can have."""
_SOFT, _HARD = 8, 4
"""Pixels between two colours of the pattern."""
_QUALITY = 85
_SECONDS_A_PIXEL = 1.5e-8


def images(
    settings: ImageSettings, seed: int, count: int, progress: Callable[[int, int], None] | None = None
) -> list[Media]:
    """As many as are asked for, or as many different ones as it makes sense to keep."""
    require_extra("media", "A synthetic image", "PIL")
    widths, heights, formats = (stream(seed, f"image {part}") for part in ("widths", "heights", "formats"))
    plans = []
    for number in range(count):
        width = min(length(widths, settings.width_mean, settings.width_stddev), _LARGEST)
        height = min(length(heights, settings.height_mean, settings.height_stddev), _LARGEST)
        form = settings.format
        if form == "random":
            form = "png" if formats.random() < 0.5 else "jpeg"
        plans.append((f"{seed}/image/{number}", width, height, form))
    return make(plans, _image, lambda plan: plan[1] * plan[2] * _SECONDS_A_PIXEL, progress)


def _image(plan: tuple[str, int, int, str]) -> Media:
    key, width, height, form = plan
    data = draw_png(key, width, height) if form == "png" else draw_jpeg(key, width, height)
    return Media(f"data:image/{form};base64,{b64encode(data).decode()}", form)


def draw_jpeg(key: str, width: int, height: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    _pattern(key, width, height, _SOFT, Image.Resampling.BILINEAR).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def draw_png(key: str, width: int, height: int) -> bytes:
    """Written here: each row as its difference from the one above, which Pillow takes twice as long to find out."""
    import numpy as np
    from PIL import Image

    pixels = np.asarray(_pattern(key, width, height, _HARD, Image.Resampling.NEAREST)).reshape(height, width * 3)
    rows = np.empty((height, width * 3 + 1), np.uint8)
    rows[:, 0] = 2  # the filter "up"; above the first row all is zero
    rows[0, 1:] = pixels[0]
    np.subtract(pixels[1:], pixels[:-1], out=rows[1:, 1:])
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(name)))


def _pattern(key: str, width: int, height: int, cell: int, how: int) -> Image:
    """A few random colours, enlarged. The hash gives the same bytes on every machine and version."""
    from PIL import Image

    across, down = max(2, -(-width // cell)), max(2, -(-height // cell))
    colours = shake_128(key.encode()).digest(across * down * 3)
    return Image.frombytes("RGB", (across, down), colours).resize((width, height), how)
