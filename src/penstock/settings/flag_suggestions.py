"""Suggestions for an unknown flag: a correction, a completion, or the equivalent of another tool's flag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.suggest import nearest

_SYNONYMS_BY_FLAG = {
    "--concurrency": "clients connections max-concurrency max-num-seqs num-concurrent parallel parallelism threads users",
    "--request-rate": "qps rps requests-per-second",
    "--request-count": "n num num-request request requests total-requests",
    "--benchmark-duration": "duration max-seconds runtime seconds test-duration time",
    "--request-timeout-seconds": "timeout",
    "--warmup-request-count": "warmups warm-up",
    "--osl": "completion-tokens max-completion-tokens max-new-tokens max-output-tokens max-tokens output-len output-length "
    "output-tokens random-output-len",
    "--isl": "input-len input-length input-tokens prompt-len prompt-length prompt-tokens random-input-len",
    "--input-file": "data data-file dataset dataset-path jsonl prompt-file prompts-file",
    "--num-prompts or --input-file": "prompt prompts",
    "--url": "address base-url endpoint-url host port server",
    "--endpoint": "endpoint-path path route",
    "--endpoint-type": "api backend",
    "--api-key": "api-token auth bearer key token",
    "--extra-inputs": "extra-body frequency-penalty ignore-eos min-tokens presence-penalty stop temperature top-k top-p",
    "--artifact-dir": "artifacts out output output-dir output-file output-folder result-dir results save-result",
    "--quiet": "silent",
    "--insecure": "k no-verify",
    "--max-error-rate": "max-errors",
}
SYNONYMS = {
    f"{'-' if len(word) == 1 else '--'}{word}": flag
    for flag, words in _SYNONYMS_BY_FLAG.items()
    for word in words.split()
}
"""Flag names of other tools, and common guesses, each with the Penstock flag."""

_DISTINCTIVE_LENGTH = 5
"""Letters from which the last word of a flag identifies it: `duration` does, `file` and `mode` do not."""


def suggest_flag(name: str, supported: Sequence[str], unsupported: Sequence[str] = ()) -> str | None:
    """Return the flag most likely meant by `name`, or None. Prefer supported flags, because the others would be refused."""
    synonym = SYNONYMS.get(name)
    last = name.rpartition("-")[2]
    return (
        (synonym if synonym and synonym.split()[0] in supported else None)
        or nearest(name, supported, 0.85)
        or _shortest(spelling for spelling in supported if len(name) > 4 and spelling.startswith(name))
        or _shortest(spelling for spelling in supported if spelling.endswith(f"-{name.strip('-')}"))
        or nearest(name, unsupported, 0.85)
        or nearest(name, supported)
        or _shortest(spelling for spelling in unsupported if len(name) > 4 and spelling.startswith(name))
        or _shortest(
            spelling for spelling in supported if len(last) >= _DISTINCTIVE_LENGTH and spelling.endswith(f"-{last}")
        )
        or nearest(name, unsupported)
    )


def _shortest(spellings: Iterable[str]) -> str | None:
    return min(spellings, key=len, default=None)
