"""Synthetic images and sound beside the text of each turn."""

from __future__ import annotations

from penstock.settings.flags.flag import Flag, Group

__all__ = ["AUDIO", "IMAGE"]

IMAGE = Group(
    "Synthetic images",
    (
        Flag(
            "--image-width-mean",
            "float",
            "Mean width. Width and height together put an image into each turn.",
            target="input.images.width_mean",
            metavar="PIXELS",
            default="0, no images",
            ge=0,
            le=16384,
        ),
        Flag(
            "--image-width-stddev",
            "float",
            "Standard deviation of the width.",
            target="input.images.width_stddev",
            metavar="PIXELS",
            default="0",
            ge=0,
        ),
        Flag(
            "--image-height-mean",
            "float",
            "Mean height.",
            target="input.images.height_mean",
            metavar="PIXELS",
            default="0, no images",
            ge=0,
            le=16384,
        ),
        Flag(
            "--image-height-stddev",
            "float",
            "Standard deviation of the height.",
            target="input.images.height_stddev",
            metavar="PIXELS",
            default="0",
            ge=0,
        ),
        Flag(
            "--image-format",
            "enum",
            "The kind of file; random draws one for each image.",
            target="input.images.format",
            choices=("png", "jpeg", "random"),
            default="jpeg",
        ),
        Flag(
            "--image-batch-size",
            "int",
            "Images in each turn.",
            aliases=("--batch-size-image",),
            target="input.images.batch",
            metavar="N",
            default="1",
            ge=0,
        ),
    ),
)

AUDIO = Group(
    "Synthetic audio",
    (
        Flag(
            "--audio-length-mean",
            "float",
            "Mean length of a clip; it puts one into each turn.",
            target="input.audio.seconds_mean",
            metavar="SECONDS",
            default="0, no audio",
            ge=0,
            le=3600,
        ),
        Flag(
            "--audio-length-stddev",
            "float",
            "Standard deviation of the length.",
            target="input.audio.seconds_stddev",
            metavar="SECONDS",
            default="0",
            ge=0,
        ),
        Flag(
            "--audio-format",
            "enum",
            "The kind of file.",
            target="input.audio.format",
            choices=("wav", "mp3"),
            default="wav",
        ),
        Flag(
            "--audio-sample-rates",
            "list",
            "Sample rates to draw from, in kHz.",
            target="input.audio.rates",
            metavar="KHZ[,KHZ]",
            default="16",
            commas=True,
        ),
        Flag(
            "--audio-depths",
            "list",
            "Bits of a sample to draw from: 8, 16, 24 or 32. MP3 has no such thing.",
            target="input.audio.depths",
            metavar="BITS[,BITS]",
            default="16",
            commas=True,
        ),
        Flag(
            "--audio-num-channels",
            "int",
            "Mono or stereo.",
            target="input.audio.channels",
            metavar="N",
            default="1",
            ge=1,
            le=2,
        ),
        Flag(
            "--audio-batch-size",
            "int",
            "Clips in each turn.",
            aliases=("--batch-size-audio",),
            target="input.audio.batch",
            metavar="N",
            default="1",
            ge=0,
        ),
    ),
)
