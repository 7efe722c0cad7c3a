from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.settings.command_line import HELP, CommandLine
from penstock.settings.flags import SPELLINGS, UNSUPPORTED_FLAGS, Flag, Group, Positional
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve

AIPERF = (Path(__file__).parent / "aiperf_flags.txt").read_text().split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--endpoint_type chat", {"endpoint.type": "chat"}),
        ("--endpoint-type=chat", {"endpoint.type": "chat"}),
        ("--endpoint_type=Chat", {"endpoint.type": "chat"}),
        ("--streaming", {"endpoint.streaming": True}),
        ("--streaming=false", {"endpoint.streaming": False}),
        ("--streaming=True", {"endpoint.streaming": True}),
        ("--streaming --streaming", {"endpoint.streaming": True}),
        ("-v", {"output.verbose": True}),
        ("-vv", {"output.verbose": True}),
        ("-v -vv", {"output.verbose": True}),
        ("--insecure", {"endpoint.verify_tls": False}),
        (
            "--no-gpu-telemetry --no-server-metrics",
            {"telemetry.no_gpu_telemetry": True, "telemetry.no_server_metrics": True},
        ),
        ("--server-metrics", {"telemetry.server_metrics": []}),
        ("--server-metrics a b --server-metrics c", {"telemetry.server_metrics": ["a", "b", "c"]}),
        ("--no-fixed-schedule", {"load.schedule.on": False}),
        ("--fixed-schedule --replay-speedup 10", {"load.schedule.on": True, "load.schedule.speedup": 10.0}),
        ("--sessions a,b --sessions c", {"input.sessions": ["a", "b", "c"]}),
        ("--transport-type http --url-strategy round_robin", {}),
        ("--model-selection-strategy round-robin", {"model_selection": "round_robin"}),
        ("-m a,b", {"models": ["a", "b"]}),
        ("-m a -m b", {"models": ["a", "b"]}),
        ("-m=a --model b,c --model_names d", {"models": ["a", "b", "c", "d"]}),
        ("--url a:1 b:2", {"endpoint.urls": ["a:1", "b:2"]}),
        ("-u a:1 -u b:2 --url=c:3", {"endpoint.urls": ["a:1", "b:2", "c:3"]}),
        ("--url a:1 b:2 --streaming", {"endpoint.urls": ["a:1", "b:2"], "endpoint.streaming": True}),
        ("--extra-inputs a:1 b:2", {"endpoint.extra": [("a", 1), ("b", 2)]}),
        ("--extra-inputs a:1,b:2", {"endpoint.extra": [("a", 1), ("b", 2)]}),
        ("--extra-inputs a:1 --extra-inputs b:2", {"endpoint.extra": [("a", 1), ("b", 2)]}),
        ("""--extra-inputs '{"a":1,"b":[2]}'""", {"endpoint.extra": [("a", 1), ("b", [2])]}),
        ("""--extra-inputs 'stop:["a","b"]'""", {"endpoint.extra": [("stop", ["a", "b"])]}),
        ("--extra-inputs=a:-1", {"endpoint.extra": [("a", -1)]}),
        ("-H 'A: b, c' -H D:5", {"endpoint.headers": [("A", "b, c"), ("D", "5")]}),
        ("""--header '{"A":"b"}'""", {"endpoint.headers": [("A", "b")]}),
        ("--api-key=-starts-with-a-dash", {"endpoint.api_key": "-starts-with-a-dash"}),
        ("--api-key a=b", {"endpoint.api_key": "a=b"}),
        ("--api-key=a=b", {"endpoint.api_key": "a=b"}),
        ("--concurrency 5 --concurrency=5", {"load.concurrency": 5}),
        ("--isl 5 --synthetic-input-tokens-mean 5", {"input.input_tokens_mean": 5}),
        ("--benchmark-grace-period inf", {"load.grace_s": float("inf")}),
        ("--tokenizer builtin", {"tokenizer.name": "builtin"}),
        ("--input-file -", {"input.file": "-"}),
        ("--streaming --", {"endpoint.streaming": True}),
        ("", {}),
    ],
)
def test_accepted_command_lines(line: str, expected: dict[str, Any]) -> None:
    assert parse(PROFILE, shlex.split(line)).values == expected


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--streaming true", "--streaming takes no separate value: write --streaming alone to turn it on, or"),
        ("--streaming x", "Unexpected argument 'x' after --streaming, which takes no value."),
        ("--no-streaming", "There is no option --no-streaming: leave --streaming out, or write --streaming=false."),
        ("--no_streaming", "There is no option --no_streaming: leave --streaming out"),
        ("--model a b", "--model takes one value, so 'b' is unexpected; write several as --model a,b."),
        ("--concurrency 1 2", "--concurrency takes one value, so '2' is unexpected"),
        ("--api-key hunter2 hunter2", "--api-key takes one value, so a second one is unexpected"),
        ("stray", "Unexpected argument 'stray': the options of profile start with --."),
        ("-- stray", "'stray' after -- is unexpected"),
        ("--concurrency", "--concurrency needs a value (a whole number of at least 1)."),
        ("--concurrency --", "--concurrency needs a value (a whole number of at least 1)."),
        (
            "--concurrency --streaming",
            "needs a value (a whole number of at least 1), but the option --streaming follows",
        ),
        ("--endpoint-type --streaming=true", "but the option --streaming follows it."),
        ("--api-key -hunter2", "write a value that starts with a dash as --api-key=VALUE."),
        ("--url", "--url needs a value."),
        ("--url=", "--url needs a value, but the value is empty."),
        ("--concurrency -5", "--concurrency must be a whole number of at least 1, not '-5'."),
        ("--request-rate -.5", "--request-rate must be a number greater than 0, not '-.5'."),
        ("--concurrency 1,x", "--concurrency must be a whole number of at least 1, not 'x'."),
        ("--concurrency 1 --concurrency 2", "--concurrency is given twice with different values (1 and 2); keep one"),
        (
            "--isl 1 --prompt-input-tokens-mean 2",
            "--isl and --prompt-input-tokens-mean are the same option, given with",
        ),
        ("--streaming --streaming=false", "--streaming is given twice with different values; keep one of them."),
        ("--api-key hunter2 --api-key hunter22", "--api-key is given twice with different values; keep one of them."),
        ("--streeming", "There is no option --streeming; did you mean --streaming?"),
        ("--STREAMING", "There is no option --STREAMING; did you mean --streaming?"),
        ("-model x", "There is no option -model; did you mean --model?"),
        ("--modle=hunter2", "There is no option --modle; did you mean --model?"),
        ("--duration 5", "There is no option --duration; did you mean --benchmark-duration?"),
        ("--test-duration 5", "There is no option --test-duration; did you mean --benchmark-duration?"),
        ("--rate 5", "There is no option --rate; did you mean --request-rate?"),
        ("--max_tokens 5", "There is no option --max_tokens; did you mean --osl?"),
        ("--prompts 5", "There is no option --prompts; did you mean --num-prompts or --input-file?"),
        ("--seed 5", "There is no option --seed; did you mean --random-seed?"),
        ("-n 5", "There is no option -n; did you mean --request-count?"),
        ("--tokeniz x", "There is no option --tokeniz; did you mean --tokenizer?"),
        ("--api-hots 3", "did you mean --api-host, which this version of Penstock does not have yet?"),
        ("--zebra-crossing", "There is no option --zebra-crossing; see `penstock profile --help`."),
        ("-Q", "There is no option -Q"),
        ("-HX-Key:hunter2", "Put a space between -H and its value."),
        (
            "--api-host 3",
            "--api-host is an AIPerf option that this version of Penstock does not have yet; run without",
        ),
        ("--auto-plot", "does not have yet; run without it (`penstock plot` draws the charts of a run)."),
        (
            "--api-host 1 --api-port 3 --scenario x --streaming",
            "--api-host, --api-port and --scenario are AIPerf options that",
        ),
        ("--api-host 3 --api-host 4", "--api-host is an AIPerf option"),
        ("--endpoint-type solido_rag", "--endpoint-type solido_rag is not supported yet"),
        ("-H hunter2", "-H must be Name:Value"),
    ],
)
def test_refused_command_lines(line: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(PROFILE, shlex.split(line))
    message = str(caught.value)
    assert sentence in message
    assert "hunter2" not in message
    assert "\n" not in message
    assert message.endswith((".", "?"))


@pytest.mark.parametrize("spelling", [spelling for row in UNSUPPORTED_FLAGS for spelling in row.spellings])
def test_every_unsupported_flag_is_refused_by_name(spelling: str) -> None:
    dashes = spelling[: len(spelling) - len(spelling.lstrip("-"))]
    snake = dashes + spelling.removeprefix(dashes).replace("-", "_")
    for words in ([spelling], [spelling, "value"], [f"{spelling}=value"], [snake, "value"]):
        with pytest.raises(UserError, match="is an AIPerf option that this version of Penstock does not have yet"):
            parse(PROFILE, words)


def test_every_aiperf_spelling_is_supported_or_refused_by_name() -> None:
    assert set(AIPERF) <= set(SPELLINGS)
    for spelling in AIPERF:
        message = _refusal([spelling])
        assert message is None or message.startswith(spelling), "AIPerf has this flag, but Penstock does not know it"


def _refusal(words: list[str], command: CommandLine = PROFILE) -> str | None:
    try:
        parse(command, words)
    except UserError as error:
        return str(error)
    return None


def test_argument_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(UserError, match="Argument 2 is not valid UTF-8"):
        parse(PROFILE, ["--model", "\udcff"])


@given(st.lists(st.sampled_from(sorted(SPELLINGS)) | st.text(max_size=8), max_size=6))
def test_any_arguments_are_parsed_or_refused_with_a_message(words: list[str]) -> None:
    assert _refusal(words) != ""


def test_spelling_of_the_user_is_kept() -> None:
    spellings = parse(PROFILE, ["--isl", "5", "--num_requests=3", "-u", "a", "--url", "b"]).spellings
    assert spellings == {"input.input_tokens_mean": "--isl", "load.requests": "--num_requests", "endpoint.urls": "-u"}


SMALL = CommandLine(
    "small",
    "A command for tests.",
    groups=(
        Group(
            "Options",
            (
                Flag("--name", "list", "Names.", "names", "NAME"),
                Flag("--ledger", "str", "A URL.", "ledger", "URL", url=True),
                Flag("--reset", "str", "A switch.", "reset", "on|off", implied="on"),
                HELP,
            ),
        ),
    ),
    positionals=(
        Positional("RUN", "the folder of the run", "run"),
        Positional("SHELL", "the shell", "shell", "enum", ("bash", "zsh"), required=False),
    ),
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a", {"run": "a"}),
        ("a zsh", {"run": "a", "shell": "zsh"}),
        ("--reset -- -a", {"run": "-a", "reset": "on"}),
        ("--reset off a", {"run": "a", "reset": "off"}),
        ("--reset=off a --name=b --name c", {"run": "a", "reset": "off", "names": ["b", "c"]}),
    ],
)
def test_positionals_and_implied_values(line: str, expected: dict[str, Any]) -> None:
    assert parse(SMALL, line.split()).values == expected


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "RUN is missing: name the folder of the run; see `penstock small --help`."),
        ("a bsh", "SHELL must be one of bash, zsh, not 'bsh' (did you mean bash?)."),
        ("a bash c", "Unexpected argument 'c': small takes RUN SHELL and options."),
        ("a bash --ledger b postgresql://me:hunter2@c", "Unexpected argument: small takes RUN SHELL and options."),
        ("a --ledger http://me:hunter2@b --ledger c", "given twice with different values (http://<redacted>@b and c)"),
        ("a --rest", "There is no option --rest; did you mean --reset?"),
        ("a --qps 5", "There is no option --qps; see `penstock small --help`."),
        ("a --goodput b", "There is no option --goodput"),
    ],
)
def test_refusals_name_the_command_and_its_positionals(line: str, sentence: str) -> None:
    message = _refusal(line.split(), SMALL)
    assert message is not None
    assert sentence in message
    assert "hunter2" not in message


def test_recorded_command_can_be_pasted() -> None:
    words = ["--model", "a b", "--extra-inputs", 'stop:["x"]', "--streaming", "--request-count=3"]
    command = parse(PROFILE, words, "aiperf").command
    assert command == """aiperf profile --model 'a b' --extra-inputs 'stop:["x"]' --streaming --request-count=3"""
    assert parse(PROFILE, shlex.split(command)[2:], "aiperf").command == command


SEED = {
    "chat, synthetic": """
        --model Qwen/Qwen3-0.6B \
        --endpoint-type chat \
        --endpoint /v1/chat/completions \
        --streaming \
        --synthetic-input-tokens-mean 100 \
        --synthetic-input-tokens-stddev 0 \
        --output-tokens-mean 200 \
        --output-tokens-stddev 0 \
        --url localhost:8000 \
        --request-count 20
    """,
    "chat, file": """
        --model Qwen/Qwen3-0.6B \
        --endpoint-type chat \
        --endpoint /v1/chat/completions \
        --streaming \
        --input-file inputs.jsonl \
        --custom-dataset-type single_turn \
        --url localhost:8000 \
        --request-count 10
    """,
    "completions, synthetic": """
        --model Qwen/Qwen3-0.6B \
        --endpoint-type completions \
        --endpoint /v1/completions \
        --synthetic-input-tokens-mean 64 \
        --synthetic-input-tokens-stddev 4 \
        --output-tokens-mean 128 \
        --output-tokens-stddev 4 \
        --url localhost:8000 \
        --request-count 32
    """,
    "completions, file": """
        --model Qwen/Qwen3-0.6B \
        --endpoint-type completions \
        --endpoint /v1/completions \
        --input-file inputs.jsonl \
        --custom-dataset-type single_turn \
        --url localhost:8000 \
        --request-count 10
    """,
}


@pytest.mark.parametrize("name", SEED)
def test_commands_of_the_aiperf_guide_are_accepted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inputs.jsonl").write_text('{"texts": ["Hello!"]}\n{"texts": ["Tell me a joke."]}\n')
    kind, source = name.split(", ")
    settings = resolve(parse(PROFILE, shlex.split(SEED[name]), "aiperf"))
    assert settings.models == ("Qwen/Qwen3-0.6B",)
    assert settings.endpoint.type == kind
    assert settings.endpoint.path == {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[kind]
    assert settings.endpoint.streaming is (kind == "chat")
    assert settings.endpoint.urls == ("http://localhost:8000",)
    assert settings.load.concurrency == 1
    assert settings.output.folder == f"artifacts/Qwen_Qwen3-0.6B-{kind}-concurrency1"
    data = settings.input
    if source == "file":
        assert (data.file, data.format, settings.load.requests) == ("inputs.jsonl", "single_turn", 10)
        return
    assert data.file is None
    shape = (data.input_tokens_mean, data.input_tokens_stddev, data.output_tokens_mean, data.output_tokens_stddev)
    assert (shape, settings.load.requests) == {
        "chat": ((100, 0, 200, 0), 20),
        "completions": ((64, 4, 128, 4), 32),
    }[kind]
