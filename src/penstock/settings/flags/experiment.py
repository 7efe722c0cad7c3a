"""Flags for runs that belong together: repeated runs and sweeps."""

from __future__ import annotations

from penstock.settings.flags.flag import Flag, Group

__all__ = ["REPEATED", "SWEEP"]

REPEATED = Group(
    "Repeated runs",
    (
        Flag(
            "--num-profile-runs",
            "int",
            "Repeat the run this many times, and report means with confidence intervals.",
            target="experiment.runs",
            metavar="N",
            default="1",
            ge=1,
            le=10,
        ),
        Flag(
            "--profile-run-cooldown-seconds",
            "float",
            "Pause between repeated runs.",
            target="experiment.run_pause_s",
            metavar="SECONDS",
            default="0",
            ge=0,
            hard_max=86_400,
        ),
        Flag(
            "--confidence-level",
            "float",
            "Confidence level of the intervals, between 0 and 1.",
            target="experiment.confidence",
            metavar="LEVEL",
            default="0.95",
            gt=0,
            hard_min=0.01,
            hard_max=0.9999,
        ),
        Flag(
            "--profile-run-disable-warmup-after-first",
            "bool",
            "Warm up before the first of the repeated runs only; with --no-…, before each of them.",
            aliases=("--no-profile-run-disable-warmup-after-first",),
            target="experiment.warmup_once",
            default="true",
        ),
        Flag(
            "--set-consistent-seed",
            "bool",
            "Use seed 42 for repeated runs if --random-seed is missing, so that all send the same prompts.",
            aliases=("--no-set-consistent-seed",),
            target="experiment.fixed_seed",
            default="true",
        ),
        Flag(
            "--vary-seed-per-trial",
            "bool",
            "Use another seed, and so other prompts, in each of the repeated runs.",
            aliases=("--no-vary-seed-per-trial",),
            target="experiment.seed_per_run",
            default="false",
        ),
        Flag(
            "--convergence-metric",
            "str",
            "Repeat at most --num-profile-runs times, and stop when this metric is stable, after 3 runs at the earliest.",
            target="experiment.convergence_metric",
            metavar="METRIC",
        ),
        Flag(
            "--convergence-stat",
            "enum",
            "Statistic of the metric that has to be stable.",
            target="experiment.convergence_stat",
            choices=("avg", "p50", "p90", "p95", "p99", "min", "max"),
            default="avg",
        ),
        Flag(
            "--convergence-threshold",
            "float",
            "The metric is stable when the figure of --convergence-mode is at most this, between 0 and 1.",
            target="experiment.convergence_limit",
            metavar="LIMIT",
            default="0.1; for cv 0.05",
            gt=0,
            hard_max=1,
        ),
        Flag(
            "--convergence-mode",
            "enum",
            "ci_width: width of the confidence interval / mean; cv: standard deviation / mean of the runs; distribution: "
            "largest distance (Kolmogorov-Smirnov) of the last run's requests from the earlier ones'.",
            target="experiment.convergence_mode",
            choices=("ci_width", "cv", "distribution"),
            default="ci_width",
        ),
    ),
)

SWEEP = Group(
    "Sweeps",
    (
        Flag(
            "--sweep",
            "enum",
            "auto: measure a single stream, then raise the concurrency until the throughput no longer grows, at most to "
            "--concurrency (default 256), and look for the lowest concurrency that saturates the server.",
            target="experiment.sweep",
            choices=("auto",),
            penstock_only=True,
        ),
        Flag(
            "--sweep-type",
            "enum",
            "With comma-separated lists of numbers for several flags, such as --concurrency 1,8,64 --isl 100,1000: measure all "
            "combinations (grid), or the first values of all lists, then the second ones (zip).",
            target="experiment.combine",
            choices=("grid", "zip"),
            default="grid",
        ),
        Flag(
            "--parameter-sweep-cooldown-seconds",
            "float",
            "Pause between the points of a sweep.",
            target="experiment.point_pause_s",
            metavar="SECONDS",
            default="0",
            ge=0,
            hard_max=86_400,
        ),
        Flag(
            "--parameter-sweep-same-seed",
            "bool",
            "Use the same seed, and so the same prompts, at every point; else --random-seed plus the number of the point.",
            aliases=("--no-parameter-sweep-same-seed",),
            target="experiment.same_seed",
            default="false",
        ),
        Flag(
            "--parameter-sweep-mode",
            "enum",
            "Order of repeated runs: all points once, then again (repeated), or all runs of a point, then the next point "
            "(independent).",
            target="experiment.order",
            choices=("repeated", "independent"),
            default="repeated",
        ),
        Flag(
            "--no-sweep-table",
            "bool",
            "Print no table of all points.",
            target="experiment.table",
            stored_value=False,
        ),
    ),
)
