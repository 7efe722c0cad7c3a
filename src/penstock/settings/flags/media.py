"""Flags for synthetic images and audio, which each turn carries in addition to its text."""

from __future__ import annotations

from penstock.settings.flags.flag import Flag, Group, count

__all__ = ["AUDIO", "IMAGE"]

IMAGE = Group(
    "Synthetic images",
    (
        Flag(
            "--image-width-mean",
            "float",
            "Mean image width. With --image-height-mean, adds an image to each turn.",
            target="input.images.width_mean",
            metavar="PIXELS",
            default="0, no images",
            ge=0,
            le=16384,
        ),
        Flag(
            "--image-width-stddev",
            "float",
            "Standard deviation of the image width.",
            target="input.images.width_stddev",
            metavar="PIXELS",
            default="0",
            ge=0,
            hard_max=16_384,
        ),
        Flag(
            "--image-height-mean",
            "float",
            "Mean image height.",
            target="input.images.height_mean",
            metavar="PIXELS",
            default="0, no images",
            ge=0,
            le=16384,
        ),
        Flag(
            "--image-height-stddev",
            "float",
            "Standard deviation of the image height.",
            target="input.images.height_stddev",
            metavar="PIXELS",
            default="0",
            ge=0,
            hard_max=16_384,
        ),
        Flag(
            "--image-format",
            "enum",
            "Image file format; random draws a format for each image.",
            target="input.images.format",
            choices=("png", "jpeg", "random"),
            default="jpeg",
        ),
        Flag(
            "--image-batch-size",
            "int",
            "Number of images in each turn.",
            aliases=("--batch-size-image",),
            target="input.images.batch",
            metavar="N",
            default="1",
            ge=0,
            hard_max=1_000,
        ),
    ),
)

AUDIO = Group(
    "Synthetic audio",
    (
        Flag(
            "--audio-length-mean",
            "float",
            "Mean length of a clip. Adds an audio clip to each turn.",
            target="input.audio.seconds_mean",
            metavar="SECONDS",
            default="0, no audio",
            ge=0,
            le=3600,
        ),
        Flag(
            "--audio-length-stddev",
            "float",
            "Standard deviation of the clip length.",
            target="input.audio.seconds_stddev",
            metavar="SECONDS",
            default="0",
            ge=0,
            hard_max=3_600,
        ),
        Flag(
            "--audio-format",
            "enum",
            "Audio file format.",
            target="input.audio.format",
            choices=("wav", "mp3"),
            default="wav",
        ),
        Flag(
            "--audio-sample-rates",
            "list",
            "Sample rates in kHz; each clip draws one.",
            target="input.audio.rates",
            metavar="KHZ[,KHZ]",
            default="16",
            comma_separated=True,
        ),
        Flag(
            "--audio-depths",
            "list",
            "Bits per sample: 8, 16, 24 or 32; each clip draws one. MP3 files ignore it.",
            target="input.audio.depths",
            metavar="BITS[,BITS]",
            default="16",
            comma_separated=True,
        ),
        count(
            "--audio-num-channels",
            "Number of channels: 1 is mono, 2 is stereo.",
            "input.audio.channels",
            default="1",
            le=2,
        ),
        Flag(
            "--audio-batch-size",
            "int",
            "Number of clips in each turn.",
            aliases=("--batch-size-audio",),
            target="input.audio.batch",
            metavar="N",
            default="1",
            ge=0,
            hard_max=1_000,
        ),
    ),
)
