"""Which flag was meant by one that there is not: a misspelling, a part of the name, or another tool's word for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.suggest import nearest

__all__ = ["SYNONYMS", "suggest_flag"]

_SAME = {
    "--concurrency": "clients connections max-concurrency max-num-seqs num-concurrent parallel parallelism threads users",
    "--request-rate": "qps rps requests-per-second",
    "--request-count": "n num num-request request requests total-requests",
    "--benchmark-duration": "max-seconds runtime seconds time",
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
    "--ui none": "q quiet silent",
    "--insecure": "k no-verify",
    "--max-error-rate": "max-errors",
}
SYNONYMS = {f"{'-' if len(word) == 1 else '--'}{word}": flag for flag, words in _SAME.items() for word in words.split()}
"""What other tools and good guesses call it."""

_LONG_WORD = 5
"""Letters of a last word that says something: `duration` does, `file` and `mode` do not."""


def suggest_flag(name: str, built: Sequence[str], unbuilt: Sequence[str] = ()) -> str | None:
    """Flags that are built come first: one that would be refused helps nobody who only forgot half of a name."""
    other = SYNONYMS.get(name)
    last = name.rpartition("-")[2]
    return (
        (other if other and other.split()[0] in built else None)
        or nearest(name, built, 0.85)
        or _shortest(spelling for spelling in built if len(name) > 4 and spelling.startswith(name))
        or _shortest(spelling for spelling in built if spelling.endswith(f"-{name.strip('-')}"))
        or nearest(name, unbuilt, 0.85)
        or nearest(name, built)
        or _shortest(spelling for spelling in unbuilt if len(name) > 4 and spelling.startswith(name))
        or _shortest(spelling for spelling in built if len(last) >= _LONG_WORD and spelling.endswith(f"-{last}"))
        or nearest(name, unbuilt)
    )


def _shortest(found: Iterable[str]) -> str | None:
    return min(found, key=len, default=None)
