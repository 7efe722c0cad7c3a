"""AIPerf flags that this version does not support. Penstock refuses each by name and silently ignores none.

To support a flag, delete its name here and add a row to `flags.table`.
"""

from __future__ import annotations

import re

from penstock.settings.flags.flag import UnsupportedFlag

_NAMES = """
endpoint: --download-video-content --request-content-type --uuid-and-strip
input: --hf-subset --hf-weka-dataset --dataset-filter --ignore-trace-delays --use-think-time-only --max-context-length
  --allow-dataset-wrap=--no-allow-dataset-wrap --trace-session-sample-ratio
conversation input: --inter-turn-delay-cap-seconds --max-idle-gap-cap-seconds --open-loop-replay=--no-open-loop-replay
  --open-loop-strict --omit-kv-hints --force-min-tokens=--no-force-min-tokens
image input: --image-source --image-source-sampling
video input: --video-batch-size=--batch-size-video --video-duration --video-fps --video-width --video-height
  --video-synth-type --video-format --video-codec --video-audio-sample-rate --video-audio-num-channels
  --video-audio-codec --video-audio-depth
load generator: --trajectory-start-min-ratio --trajectory-start-max-ratio --burst-phase-starts
  --trace-idle-gap-cap-seconds --system-idle-gap-cap-seconds
scenario: --scenario --unsafe-override
warmup: --agentic-cache-warmup-duration --agentic-warmup-grace-period
output: --auto-plot=--no-auto-plot --plot-required
multi-run: --search-space --search-metric --search-stat --search-direction --search-max-iterations
  --search-initial-points --search-random-seed --search-planner --optuna-sampler --optuna-acquisition
  --optuna-terminator --search-percentile-pooling --bo-constraint-mode --variant=--sweep-variant --search-sla
  --search-sla-tier --search-style
accuracy: --accuracy-benchmark --accuracy-tasks --accuracy-n-shots --accuracy-enable-cot=--accuracy-no-enable-cot
  --accuracy-grader --accuracy-system-prompt --accuracy-verbose
service: --api-port --api-host
"""
"""The first spelling of each flag, and others after equals signs, by AIPerf's groups."""

_HINTS = {
    "--auto-plot": "`penstock plot` draws the charts of a run",
}

_NO_BAYES = "Bayesian search, Sobol designs and Optuna are not part of Penstock; use --search-recipe or --find-max"
_HINTS |= dict.fromkeys(re.findall(r"--(?:search|optuna|bo)-[a-z-]+", _NAMES), _NO_BAYES)
_ROWS = (word.split("=") for word in _NAMES.split() if word.startswith("--"))
UNSUPPORTED_FLAGS = tuple(UnsupportedFlag(first, tuple(rest), _HINTS.get(first, "")) for first, *rest in _ROWS)
