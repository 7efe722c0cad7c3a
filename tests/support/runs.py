"""Write a log with the real writers, write its artifacts, and read them back."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from penstock.metrics.summary import Summary
from penstock.metrics.token_counting import ClientCounter, ServerCounter
from penstock.records.header import LOG_FORMAT, RunHeader
from penstock.records.log import LoggedPhase, LogWriter, RunLog, RunnerLog
from penstock.records.payloads import PayloadWriter
from penstock.records.record import Record
from penstock.reports.artifact_writer import ArtifactWriter
from penstock.settings.schema import (
    EndpointSettings,
    InputSettings,
    LoadSettings,
    OutputSettings,
    Settings,
    TokenizerSettings,
    WarmupSettings,
)

EPOCH = 1_794_704_436_000_000_000
WARMUP, PROFILING = LoggedPhase(0, "warmup", "warmup"), LoggedPhase(0, "profiling", "profiling")
BODY = b'{"messages": [{"role":"user","content":"one two three"}], "stream":true}'


def make_settings(
    *,
    endpoint="chat",
    streaming=True,
    server_token_count=False,
    per_chunk_usage=False,
    legacy_max_tokens=False,
    seed=None,
    level="records",
    prefix=None,
    http_trace=False,
    goodput="",
    slice_s=None,
    outputs_json=False,
) -> Settings:
    return Settings(
        models=("mock",),
        endpoint=EndpointSettings(
            type=endpoint,
            streaming=streaming,
            server_token_count=server_token_count,
            per_chunk_usage=per_chunk_usage,
            legacy_max_tokens=legacy_max_tokens,
        ),
        input=InputSettings(seed=seed),
        tokenizer=TokenizerSettings(),
        load=LoadSettings(concurrency=1, requests=2),
        warmup=WarmupSettings(),
        output=OutputSettings(
            folder="out",
            export_level=level,
            prefix=prefix,
            http_trace=http_trace,
            slice_s=slice_s,
            outputs_json=outputs_json,
        ),
        command="aiperf profile --model 'mock'",
        goodput=goodput,
    )


def make_header(**changes: Any) -> RunHeader:
    """Make a header; `changes` are fields of it or arguments of `make_settings`."""
    fields = {
        name: changes.pop(name) for name in list(changes) if name in RunHeader.__struct_fields__ and name != "seed"
    }
    return RunHeader(
        **{
            "penstock_version": "0.1.0",
            "log_format": LOG_FORMAT,
            "benchmark_id": "d3cd2bf9da9d",
            "epoch_wall_ns": EPOCH,
            "settings": make_settings(**changes),
            "dataset": "synthetic",
            "conversations": 1,
            "seed": 7,
            "concurrency": 1,
            "requests": 2,
            "workers": 1,
            "machine": {"cpus": 2},
        }
        | fields
    )


class WordTokenizer:
    """Counts each word as a token."""

    name = "words"
    source = "builtin"

    def count_many(self, texts, threads=1):
        return [len(text.split()) for text in texts]


def load_word_tokenizer():
    return WordTokenizer(), None


def input_texts(body: bytes) -> list[str]:
    return [message["content"] for message in json.loads(body)["messages"]]


@dataclass
class ReportedRun:
    summary: Summary
    folder: str

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def read(self, name: str) -> str:
        with open(self.path(name), newline="") as f:
            return f.read()

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.read("profile_export_aiperf.json"))

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read("profile_export.jsonl").splitlines()]

    @property
    def csv(self) -> list[str]:
        text = self.read("profile_export_aiperf.csv")
        assert text.count("\n") == text.count("\r\n")
        return text.split("\r\n")


def bodies_of(conversations) -> list[bytes]:
    return [body for _, bodies in conversations for body in bodies]


def digest_of(record: Record, stored: list[bytes], built: Sequence[bytes]) -> bytes:
    bodies, number = (stored, record.payload) if record.built is None else (built, record.built)
    return sha256(bodies[number]).digest()


def write_log(
    folder, records, *, conversations=(("session-0", [BODY]),), built=(), phases=(PROFILING,), **changes
) -> str:
    """Write a log and return its folder.

    `conversations` are pairs of a name and bodies; `built` are the bodies that worker 0 built while it ran.
    """
    path = str(folder / "log")
    os.makedirs(path, exist_ok=True)
    RunLog.write_header(path, make_header(**changes))
    runner_log = RunnerLog(path)
    for index, phase in enumerate(phases):
        runner_log.phase(msgspec.structs.replace(phase, index=index))
    runner_log.close()
    payloads = PayloadWriter(path)
    for session, bodies in conversations:
        for body in bodies:
            payloads.add_body(body)
        payloads.end_conversation(session)
    payloads.close()
    built_payloads = PayloadWriter(path, 0)
    for body in built:
        built_payloads.add_body(body, conversation=0, turn=0)
    built_payloads.close()
    for worker in sorted({r.worker for r in records}):
        writer = LogWriter(path, worker)
        for r in records:
            if r.worker == worker:
                if not r.digest and r.sent is not None:
                    r.digest = digest_of(r, bodies_of(conversations), built)
                writer.record(r)
        writer.close()
    return path


def write_artifacts(log, folder, tokenizer, texts, *, progress=None, processes=1, **of_summary) -> Summary:
    """Write the artifacts of a log. `of_summary` are fields of the summary."""
    with ArtifactWriter(log, folder, processes) as writer:
        endpoint = log.header.settings.endpoint
        counter = ClientCounter(tokenizer, log.header, writer.bodies, texts)
        if endpoint.server_token_count:
            counter = ServerCounter(per_chunk=endpoint.per_chunk_usage)
        summary, _ = writer.summarize(counter, progress)
        for name, value in of_summary.items():
            setattr(summary, name, value)
        writer.finish(summary)
        return summary


def report_run(
    folder,
    records,
    *,
    tokenizer=load_word_tokenizer,
    texts=input_texts,
    certificate=None,
    was_cancelled=False,
    incomplete_reason=None,
    **changes,
) -> ReportedRun:
    """Write a log of `records` and its artifacts."""
    log = RunLog(write_log(folder, records, **changes))
    out = str(folder / "out")
    summary = write_artifacts(
        log,
        out,
        tokenizer,
        texts,
        certificate=certificate,
        was_cancelled=was_cancelled,
        incomplete_reason=incomplete_reason,
    )
    return ReportedRun(summary, out)
