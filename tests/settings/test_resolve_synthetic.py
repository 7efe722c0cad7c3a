"""Settings of synthetic conversations, images and audio."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.settings.input_config import input_config
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import AudioSettings, ConversationSettings, ImageSettings, Settings


def settings_for(line: str) -> Settings:
    return resolve(parse(PROFILE, ["--model", "m", *line.split()]))


def test_conversation_flags_reach_settings_and_input_config() -> None:
    settings = settings_for(
        "--num-sessions 7 --session-turns-mean 3 --session-turns-stddev 1 --session-turn-delay-mean 500 "
        "--session-turn-delay-stddev 50 --session-delay-ratio 0.5 --shared-system-prompt-length 40 "
        "--user-context-prompt-length 30"
    )
    assert settings.load.conversations == 7
    assert settings.input.conversation == ConversationSettings(
        turns_mean=3,
        turns_stddev=1,
        delay_mean_ms=500,
        delay_stddev_ms=50,
        delay_ratio=0.5,
        system_tokens=40,
        context_tokens=30,
    )
    config = input_config(settings)
    assert config["phases"][0]["sessions"] == 7
    (data,) = config["datasets"]
    assert data["turns"] == {"mean": 3.0, "stddev": 1.0}
    assert data["turn_delay"] == {"mean": 500.0, "stddev": 50.0}
    assert data["prefix_prompts"] == {"shared_system_length": 40, "user_context_length": 30}


def test_media_flags_reach_settings_and_input_config() -> None:
    settings = settings_for(
        "--image-width-mean 512 --image-height-mean 256 --image-width-stddev 8 --image-format PNG --batch-size-image 2 "
        "--audio-length-mean 5.5 --audio-format mp3 --audio-sample-rates 16,44.1 --audio-depths 8,24 "
        "--audio-num-channels 2 --audio-batch-size 3"
    )
    assert settings.input.images == ImageSettings(
        width_mean=512, height_mean=256, width_stddev=8, format="png", batch=2
    )
    assert settings.input.images.per_turn == 2
    assert settings.input.audio == AudioSettings(
        seconds_mean=5.5, format="mp3", rates=(16000, 44100), depths=(8, 24), channels=2, batch=3
    )
    (data,) = input_config(settings)["datasets"]
    assert data["images"]["width"] == {"mean": 512.0, "stddev": 8.0}
    assert data["audio"]["sample_rates"] == [16.0, 44.1]


def test_no_media_by_default_or_with_batch_size_zero() -> None:
    assert settings_for("").input.images.per_turn == settings_for("").input.audio.per_turn == 0
    none = settings_for(
        "--image-width-mean 5 --image-height-mean 5 --image-batch-size 0 --audio-length-mean 1 --audio-batch-size 0"
    )
    assert none.input.images.per_turn == none.input.audio.per_turn == 0


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "--endpoint-type responses --use-legacy-max-tokens",
            "responses has one name for the length limit (max_output_tokens), so leave the flag out.",
        ),
        ("--conversation-turn-mean 0", "--conversation-turn-mean must be a whole number of at least 1, not '0'."),
        ("--conversation-num 0", "--conversation-num must be a whole number of at least 1, not '0'."),
        ("--session-turn-delay-mean 5", "sets the delay between two turns, but a conversation has one turn"),
        ("--image-width-mean 5", "--image-width-mean needs --image-height-mean too: an image has both."),
        ("--image-height-mean 5", "--image-height-mean needs --image-width-mean too: an image has both."),
        ("--image-format png", "--image-format applies to synthetic images, but there are none"),
        ("--image-format gif --image-width-mean 5", "--image-format must be one of png, jpeg, random, not 'gif'."),
        ("--image-width-mean 99999 --image-height-mean 5", "must be a number from 0 to 16384"),
        (
            "--audio-format wav",
            "--audio-format applies to synthetic audio, but there is none; give --audio-length-mean",
        ),
        ("--audio-length-mean 1 --audio-format flac", "--audio-format must be one of wav, mp3, not 'flac'."),
        ("--audio-length-mean 1 --audio-depths 12", "--audio-depths must be 8, 16, 24 or 32 bits, not '12'."),
        ("--audio-length-mean 1 --audio-depths deep", "--audio-depths must be 8, 16, 24 or 32 bits, not 'deep'."),
        ("--audio-length-mean 1 --audio-sample-rates 0.5", "--audio-sample-rates takes kHz from 1 to 192"),
        ("--audio-length-mean 1 --audio-sample-rates nan", "--audio-sample-rates takes kHz from 1 to 192"),
        (
            "--audio-length-mean 1 --audio-format mp3 --audio-sample-rates 13",
            "--audio-sample-rates 13 is not a sample rate of MP3 files; choose from 8, 11.025, 12, 16,",
        ),
        ("--audio-length-mean 1 --audio-num-channels 3", "--audio-num-channels must be a whole number from 1 to 2"),
        (
            "--endpoint-type completions --image-width-mean 5 --image-height-mean 5",
            "--image-width-mean adds an image to each request, which --endpoint-type completions cannot carry",
        ),
        ("--endpoint-type completions --audio-length-mean 5", "which --endpoint-type completions cannot carry"),
        ("--endpoint-type completions --shared-system-prompt-length 5", "--shared-system-prompt-length needs messages"),
        ("--endpoint-type completions --conversation-turn-mean 2", "cannot send earlier turns"),
        ("--endpoint-type completions --system-prompt Hi", "--system-prompt needs messages"),
        ("--num-prefix-prompts 3", "--num-prefix-prompts needs --prefix-prompt-length too"),
        ("--prefix-prompt-length 3", "--prefix-prompt-length needs --num-prefix-prompts too"),
        ("--system-prompt Hi --shared-system-prompt-length 5", "both set the system prompt; keep one of them"),
        ("--system-prompt-file missing.txt", "--system-prompt-file 'missing.txt' cannot be read: No such file"),
        ("--system-prompt=", "is empty"),
    ],
)
def test_invalid_flags_are_refused(line: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        settings_for(line)
    assert sentence in str(caught.value)


def test_system_prompt_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_text("Antworte höflich.\n", encoding="utf-8")
    assert settings_for(f"--system-prompt-file {file}").input.system == "Antworte höflich.\n"
    file.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"is not in UTF-8 \(byte 1\)"):
        settings_for(f"--system-prompt-file {file}")


@pytest.mark.parametrize(
    "flags",
    [
        "--num-prefix-prompts 3 --prefix-prompt-length 4",
        "--conversation-turn-mean 3",
        "--shared-system-prompt-length 9",
        "--image-width-mean 5 --image-height-mean 5",
        "--audio-length-mean 2",
    ],
)
def test_synthetic_shape_flags_are_refused_with_a_file(flags: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "x"}\n')
    with pytest.raises(UserError, match="applies to synthetic prompts, but --input-file has its own"):
        settings_for(f"--input-file {file} {flags}")
    assert settings_for(f"--input-file {file} --conversation-turn-delay-ratio 2").input.conversation.delay_ratio == 2
    assert settings_for(f"--input-file {file} --conversation-num 2").load.conversations == 2
