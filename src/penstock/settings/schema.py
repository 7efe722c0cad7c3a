"""The settings of a run: typed, frozen, resolved. AIPerf's flag names do not appear here (see `settings.flags`)."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from penstock.secrets import Secret

BURST = "concurrency_burst"
"""The arrival pattern without a rate: a closed loop, which starts all slots at once."""
Parameter = int | float | str
"""A value of a sweep."""
RAW = "raw"
"""The export level that keeps the bytes of the replies."""


class NumberDistribution(msgspec.Struct, frozen=True, kw_only=True):
    """How a number is drawn: normally, log-normally if there is a median, or from one of several parts."""

    mean: float = 0
    stddev: float = 0
    median: float | None = None
    parts: tuple[NumberDistribution, ...] = ()
    """Replace the mean: each number comes from one of them, drawn by their weights."""
    weight: float = 1
    low: float | None = None
    """Smaller numbers are replaced by this one."""
    high: float | None = None
    """Larger numbers are replaced by this one."""

    @property
    def expected(self) -> float:
        """The mean, without the effect of the limits."""
        if not self.parts:
            return self.mean
        return sum(part.weight * part.expected for part in self.parts) / sum(part.weight for part in self.parts)


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "chat"
    urls: tuple[str, ...] = ("http://localhost:8000",)
    path: str | None = None
    """Replaces the default path of the endpoint type."""
    streaming: bool = False
    api_key: Secret | None = None
    api_key_file: str | None = None
    api_key_env: str | None = None
    default_api_key: bool = False
    """The key is that of the environment variable OPENAI_API_KEY, which no flag names."""
    headers: tuple[tuple[str, Secret], ...] = ()
    """Any header can carry a credential, so every value is a secret."""
    extra: dict[str, Any] = {}
    legacy_max_tokens: bool = False
    server_token_count: bool = False
    per_chunk_usage: bool = False
    """Ask for usage in every chunk of a stream."""
    timeout_s: float = 21600.0
    connections: Literal["pooled", "never", "sticky-user-sessions"] = "pooled"
    session_header: str = "X-Correlation-ID"
    """Name of the header with the id of the conversation."""
    verify_tls: bool = True
    proxy: Secret | None = None
    """URL of an HTTP proxy, which may contain a password."""
    trust_env: bool = False
    """Use the proxies that the environment names."""
    cross_origin_redirects: bool = False
    """Follow redirects to other origins too."""


class ConversationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of synthetic conversations. `delay_ratio` also applies to conversations from a file."""

    turns_mean: float = 1
    turns_stddev: float = 0
    delay_mean_ms: float = 0
    """Delay from a reply to the next turn."""
    delay_stddev_ms: float = 0
    delay_ratio: float = 1
    system_tokens: int | None = None
    """Length of the system prompt that all conversations share."""
    context_tokens: int | None = None
    """Length of the user message, different for each conversation, that begins it."""
    prefixes: int = 0
    """Number of different texts with which first prompts begin."""
    prefix_tokens: int = 0
    """Length of these texts, which is added to that of the prompt."""


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Synthetic images in each turn. Without a width and a height there are none."""

    width_mean: float = 0
    height_mean: float = 0
    width_stddev: float = 0
    height_stddev: float = 0
    format: Literal["png", "jpeg", "random"] = "jpeg"
    batch: int = 1

    @property
    def per_turn(self) -> int:
        return self.batch if self.width_mean > 0 and self.height_mean > 0 else 0


class AudioSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Synthetic audio in each turn. Without a length there is none."""

    seconds_mean: float = 0
    seconds_stddev: float = 0
    format: Literal["wav", "mp3"] = "wav"
    rates: tuple[int, ...] = (16000,)
    """Sample rates in Hz; each clip draws one."""
    depths: tuple[int, ...] = (16,)
    """Bits per sample; each clip draws one."""
    channels: int = 1
    batch: int = 1

    @property
    def per_turn(self) -> int:
        return self.batch if self.seconds_mean > 0 else 0


class RankingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Synthetic rankings: a query and the passages to rank."""

    passages_mean: float = 1
    passages_stddev: float = 0
    passage_tokens_mean: float = 550
    passage_tokens_stddev: float = 0
    query_tokens_mean: float = 550
    query_tokens_stddev: float = 0


class LengthPair(msgspec.Struct, frozen=True):
    """A share of the requests, and the lengths of its prompts and replies in tokens."""

    percent: float
    input_mean: float
    input_stddev: float
    output_mean: float
    output_stddev: float


class SynthesisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a trace before it is sent."""

    speedup: float = 1.0
    prefix_length: float = 1.0
    """Factor for the leading blocks that several prompts share."""
    roots: int = 1
    """Number of copies of the shared blocks, among which the conversations are divided."""
    prompt_length: float = 1.0
    """Factor for the rest of each prompt."""
    output_length: float = 1.0
    max_input: int | None = None
    """Leave out requests with a longer prompt."""
    max_output: int | None = None
    """Upper limit of the reply lengths."""


class InputSettings(msgspec.Struct, frozen=True, kw_only=True):
    file: str | None = None
    format: str | None = None
    """Name of the dataset format; None: detect it."""
    public: Literal["sharegpt"] | None = None
    """Dataset of the hub that is the file."""
    sampling: Literal["sequential", "shuffle", "random"] = "sequential"
    seed: int | None = None
    entries: int | None = None
    """Number of different synthetic prompts; None: derive it from the load."""
    input_tokens_mean: float = 550
    input_tokens_stddev: float = 0
    output_tokens_mean: float | None = None
    """None: send no length limit."""
    output_tokens_stddev: float = 0
    length_pairs: tuple[LengthPair, ...] = ()
    """Replace the means and standard deviations of both lengths."""
    range_ratio: tuple[float, float] | None = None
    """Lengths of prompts and replies are uniform in a range that these ratios and the means give."""
    range_style: Literal["vllm", "sglang"] = "vllm"
    """The range is mean ± ratio (vllm), or from the ratio of the mean to the mean (sglang)."""
    distributions: tuple[tuple[str, NumberDistribution], ...] = ()
    """Replace a mean and a standard deviation, by the name of the mean's setting: `input_tokens_mean`, `images.width_mean`."""
    corpus: Literal["sonnet", "coding", "random"] | None = None
    """What synthetic prompts are made of; None: English sentences."""
    batch: int = 1
    """Number of texts per request."""
    block_size: int | None = None
    """Tokens that a hash id of a trace stands for; None: as the format says."""
    conversation: ConversationSettings = ConversationSettings()
    system: str | None = None
    """System prompt of all conversations, those of a file too."""
    system_file: str | None = None
    """The file that the system prompt was read from."""
    cache_bust: str = "none"
    """Where markers keep prompts out of a prefix cache: a value of `--cache-bust`."""
    images: ImageSettings = ImageSettings()
    audio: AudioSettings = AudioSettings()
    rankings: RankingSettings = RankingSettings()
    ranks: bool = False
    """Synthetic turns are rankings: a query and passages."""
    separate_texts: bool = False
    """The server reads each text of a turn by itself."""
    texts: bool = True
    """Synthetic turns have texts."""
    synthesis: SynthesisSettings = SynthesisSettings()
    sessions: tuple[str, ...] = ()
    """Ids of the conversations to send; empty: all."""

    def distribution(self, name: str) -> NumberDistribution | None:
        """Return what replaces a mean, by the name of its setting."""
        return dict(self.distributions).get(name)

    @property
    def marks_conversations(self) -> bool:
        """True if each conversation gets a marker of its own whenever it is sent, before the end of its first turn."""
        return self.cache_bust in ("system_prefix", "system_suffix", "first_turn_prefix")


class TokenizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    """A folder, a tokenizer.json, a Hugging Face id or `builtin`; None: the model's tokenizer, else `builtin`."""
    revision: str = "main"
    apply_chat_template: bool = False
    """Input lengths include what the chat template of the tokenizer adds."""


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether and how to send requests at their recorded times."""

    on: bool = False
    start_ms: float | None = None
    """Skip requests recorded before this time, and start the schedule there."""
    end_ms: float | None = None
    """Skip requests recorded after this time."""
    auto_offset: bool = True
    """Start the schedule at the first request; otherwise at time zero of the recording."""
    speedup: float = 1.0


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int | None = None
    rate: float | None = None
    """Requests per second."""
    conversation_rate: float | None = None
    """Conversations that start per second."""
    user_rate: float | None = None
    """Requests per second of `users` together, each of which sends in a fixed interval."""
    users: int | None = None
    arrivals: str = "poisson"
    """A name of `settings.arrival_patterns`."""
    smoothness: float | None = None
    """Shape of the gaps of gamma arrivals; None: 1."""
    concurrency_ramp_s: float | None = None
    """Time in which the concurrency grows from 1 to its value."""
    prefill_concurrency: int | None = None
    """Requests that may wait for their first content at once."""
    prefill_ramp_s: float | None = None
    rate_ramp_s: float | None = None
    """Time in which the rate grows from 0 to its value."""
    rate_series: tuple[tuple[float, float], ...] = ()
    """Points (seconds, requests per second) between which the rate moves linearly."""
    requests: int | None = None
    conversations: int | None = None
    """Stop after starting this many conversations, and finish them."""
    duration_s: float | None = None
    grace_s: float = 30.0
    max_failed_share: float | None = None
    """Share of failed requests, from 0 to 1, above which the run is ended."""
    stop_on_overload: bool = False
    """End a run, and leave out the higher rates of a sweep, when the server falls behind the rate."""
    cancellation_percent: float | None = None
    """Share of the profiled requests that are cancelled."""
    cancellation_delay_s: float = 0.0
    schedule: ScheduleSettings = ScheduleSettings()

    @property
    def recorded(self) -> ScheduleSettings | None:
        """The schedule if the run follows one, else None."""
        return self.schedule if self.schedule.on else None

    @property
    def arrival_rate(self) -> float | None:
        """Arrivals per second, of requests or of conversations; the largest of a series; None without a rate."""
        if self.rate_series:
            return max(rate for _, rate in self.rate_series)
        rates = (self.rate, self.conversation_rate, self.user_rate)
        return next((rate for rate in rates if rate is not None), None)

    @property
    def open_loop(self) -> bool:
        """True if times are given for the requests, instead of sending when an earlier one has ended."""
        return self.arrival_rate is not None or self.recorded is not None


class WarmupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The warmup. There is one if one of the first three fields is set. A field that is None has the value of the run, except
    for the grace period."""

    requests: int = 0
    conversations: int | None = None
    duration_s: float | None = None
    grace_s: float | None = None
    """None: no limit."""
    concurrency: int | None = None
    prefill_concurrency: int | None = None
    rate: float | None = None
    user_rate: float | None = None
    users: int | None = None
    arrivals: str | None = None
    """A name of `settings.arrival_patterns`, or `BURST`."""
    concurrency_ramp_s: float | None = None
    prefill_ramp_s: float | None = None
    rate_ramp_s: float | None = None
    rate_is_unlimited: bool = False
    """True if the concurrency of the run does not limit the rate of the warmup, because no flag sets it."""

    @property
    def on(self) -> bool:
        return bool(self.requests) or self.conversations is not None or self.duration_s is not None

    def load(self, run: LoadSettings) -> LoadSettings | None:
        """Return the load of the warmup of a run; None without a warmup. Nothing is cancelled in a warmup."""
        if not self.on:
            return None
        rates, ramps = ("rate", "user_rate", "users"), ("concurrency_ramp_s", "prefill_ramp_s", "rate_ramp_s")
        names = ("concurrency", "prefill_concurrency", *rates, *ramps)
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.rate is not None or self.user_rate is not None or self.arrivals == BURST:
            users = None if self.user_rate is None else run.users
            changes = {"rate": None, "conversation_rate": None, "user_rate": None, "users": users} | changes
            changes["rate_series"] = ()
        if self.arrivals == BURST:
            changes |= {
                "smoothness": None,
                "rate_ramp_s": None,
                "concurrency": self.concurrency or run.concurrency or 1,
            }
        elif self.arrivals is not None:
            changes |= {"arrivals": self.arrivals, "smoothness": run.smoothness if self.arrivals == "gamma" else None}
        has_rate = self.rate is not None or self.user_rate is not None
        if has_rate and self.concurrency is None and self.rate_is_unlimited:
            changes |= {"concurrency": None, "concurrency_ramp_s": None}
        return msgspec.structs.replace(
            run,
            **changes,
            requests=self.requests or None,
            conversations=self.conversations,
            duration_s=self.duration_s,
            grace_s=math.inf if self.grace_s is None else self.grace_s,
            cancellation_percent=None,
            schedule=ScheduleSettings(),
        )


class ReadinessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The wait for the server before the first request."""

    timeout_s: float = 0.0
    """0: do not wait."""
    mode: Literal["models", "inference", "both"] = "inference"
    interval_s: float = 5.0


class ServerCallSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Calls to the servers that are no requests to the model."""

    reset_cache: bool = False
    """Clear the prefix caches before each run."""
    reset_path: str = "/reset_prefix_cache"
    reset_timeout_s: float = 30.0
    profiler: bool = False
    """Profile the servers during the profiling phase."""
    start_path: str = "/start_profile"
    stop_path: str = "/stop_profile"
    profiler_timeout_s: float = 300.0


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is observed besides the requests. Without being asked for, only the servers' metrics are read, before and after the
    load."""

    server_metrics: tuple[str, ...] | None = None
    """URLs of Prometheus endpoints in addition to those of the servers; None: scrape nothing during the load."""
    server_metrics_formats: tuple[str, ...] = ("json", "csv")
    interval_s: float = 1 / 3
    """Time between scrapes."""
    metrics_port: int | None = None
    """Port on which the figures of the run are served during it; None: serve nothing."""
    gpu: tuple[str, ...] | None = None
    """URLs of DCGM exporters, or `pynvml` for the GPUs of this machine; None: read nothing."""
    probe_network: bool = False
    """Measure the round trip to the servers."""
    ping_interval_s: float = 1.0
    """Time between two such measurements."""
    network_ms: float | None = None
    """The round trip, if the user gives it."""
    no_server_metrics: bool = False
    no_gpu_telemetry: bool = False
    """The second flag asks for the default. Both contradict the ones that turn telemetry on."""

    @property
    def reads_server_metrics(self) -> bool:
        """True if the servers' own metrics are read before and after the load."""
        return self.server_metrics is None and not self.no_server_metrics


class UserFile(msgspec.Struct, frozen=True):
    path: str
    """Relative to the artifact folder."""
    format: Literal["json", "yaml", "text"]
    content: Any
    """Its texts may be Jinja templates."""


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    remote: str | None = None
    """URL to which the folder is copied after the report."""
    prefix: str | None = None
    export_level: Literal["summary", "records", "raw"] = msgspec.field(default="records", name="level")
    """`level` in the header of a log."""
    ui: Literal["dashboard", "simple", "none"] | None = None
    """`none`: show no progress. None: the dashboard on a terminal that can show it, otherwise `simple`."""
    quiet: bool = False
    """Print only errors, and a certificate that is not VALID."""
    verbose: bool = False
    http_trace: bool = False
    """Add the HTTP phases of each request to the per-request file."""
    show_http: bool = False
    """Print the table of HTTP phases."""
    outputs_json: bool = False
    """Write the texts of the replies."""
    slice_s: float | None = None
    """Length of the parts of the run that get metrics of their own."""
    html: bool = True
    """Write report.html."""
    exports: tuple[str, ...] = ()
    """Further formats of the per-request file: `parquet`."""
    user_files: tuple[UserFile, ...] = ()
    """Files of the user, which are written before the first request."""
    variables: dict[str, Any] = {}
    """Values for the templates of these files."""

    @property
    def keeps_replies(self) -> bool:
        return self.export_level == RAW


class ExportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The systems to which the figures of a run are sent."""

    otel_url: str | None = None
    """URL of an OTLP receiver, with the path for metrics; None: send nothing."""
    stream: Literal["default", "metrics"] = "default"
    """What is sent to it. Both send the metrics of the requests."""
    otel_attributes: tuple[tuple[str, str], ...] = ()
    """Further attributes of the resource."""
    provider: str | None = None
    """Provider of the model; None: the one whose API the endpoint type is."""
    mlflow_uri: str | None = None
    """Tracking server or folder; None: log nothing to MLflow."""
    mlflow_experiment: str = "penstock"
    mlflow_run_name: str | None = None
    """None: the name of the artifact folder."""
    mlflow_tags: tuple[tuple[str, str], ...] = ()
    mlflow_parent: str | None = None
    """Id of the run to which the run belongs."""
    mlflow_globs: tuple[str, ...] = ()
    """Patterns of the files to upload; empty: all."""
    wandb_project: str | None = None
    """None: log nothing to W&B."""
    wandb_entity: str | None = None
    wandb_run_name: str | None = None
    """None: the name of the artifact folder."""
    wandb_tags: tuple[str, ...] = ()


class ExperimentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that belong together: repeated runs and sweeps."""

    runs: int = 1
    """Runs of each combination of values, at most."""
    run_pause_s: float = 0.0
    confidence: float = 0.95
    warmup_once: bool = True
    """Warm up before the first of the repeated runs only."""
    fixed_seed: bool = True
    """Without a seed of the user, all repeated runs have seed 42."""
    seed_per_run: bool = False
    """Each of the repeated runs has another seed."""
    convergence_metric: str | None = None
    """Stop repeating when this metric is stable."""
    convergence_stat: Literal["avg", "p50", "p90", "p95", "p99", "min", "max"] = "avg"
    convergence_mode: Literal["ci_width", "cv", "distribution"] = "ci_width"
    convergence_limit: float | None = None
    """None: the default of the mode."""
    sweep: Literal["auto"] | None = None
    """`auto`: find the concurrency that saturates the server."""
    combine: Literal["grid", "zip"] = "grid"
    """Sweep over all combinations of the values, or over the first of all lists, then the second ones."""
    point_pause_s: float = 0.0
    same_seed: bool = False
    """All points of a sweep have the same seed."""
    order: Literal["repeated", "independent"] = "repeated"
    """Measure all points once, then again; or all runs of a point, then the next point."""
    trial_folders: bool = False
    """The folders of the repeated runs of a sweep have AIPerf's names; False in logs from before that."""
    table: bool = True
    """Print the table of all points."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters of a sweep."""
    find_max: Literal["concurrency", "request-rate"] | None = None
    """Search for the largest load that meets the objectives."""
    slos: tuple[str, ...] = ()
    """Objectives such as `p99 time_to_first_token<300`."""
    search_min: float = 1.0
    search_max: float = 1024.0
    """The range of the load that is searched."""
    level_requests: int | None = None
    """Requests after which a load ends that is not decided; None: a number that fits the objectives."""
    recipe: (
        Literal[
            "max-concurrency-under-sla",
            "max-throughput-ttft-sla",
            "max-throughput-itl-sla",
            "max-goodput-under-slo",
            "concurrency-ramp",
            "prefill-ttft-curve",
            "decode-itl-curve",
            "pareto-sweep",
        ]
        | None
    ) = None
    """AIPerf's name of a search or a grid (`settings.recipes`). For the first, `resolve` sets `find_max` and `slos`."""
    ttft_sla_ms: float | None = None
    itl_sla_ms: float | None = None
    e2e_sla_ms: float | None = None
    error_rate_sla: float | None = None
    tpot_sla_ms: float | None = None
    """The same as `itl_sla_ms`."""
    slo_attainment: float | None = None
    """Share of the requests that have to meet AIPerf's limits; None: 0.95, or no share for the largest goodput."""
    degradation_threshold: float = 0.2
    """Share by which the figure of the knee exceeds that of the lowest concurrency."""
    degradation_metric: str = "request_latency"
    degradation_stat: Literal["avg", "p50", "p90", "p95", "p99"] = "p99"
    concurrency_steps: int | None = None
    isl_min: int | None = None
    isl_max: int | None = None
    isl_steps: int | None = None
    osl_min: int | None = None
    osl_max: int | None = None
    osl_steps: int | None = None
    isl_osl_pairs: str | None = None
    """These made the points of a grid."""

    @property
    def searches_peak(self) -> bool:
        return self.recipe is not None and self.recipe.startswith(("max-throughput", "max-goodput"))

    @property
    def chooses_points(self) -> bool:
        """True if the points depend on results, and are not measured in their order."""
        return self.sweep == "auto" or self.find_max is not None or self.searches_peak


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    models: tuple[str, ...]
    model_selection: Literal["round_robin", "random", "weighted"] = "round_robin"
    """The way in which the models share the conversations."""
    model_weights: tuple[float, ...] = ()
    """For `weighted`, the relative share of each model."""
    endpoint: EndpointSettings
    input: InputSettings
    tokenizer: TokenizerSettings
    load: LoadSettings
    warmup: WarmupSettings
    output: OutputSettings
    readiness: ReadinessSettings = ReadinessSettings()
    server_calls: ServerCallSettings = ServerCallSettings()
    experiment: ExperimentSettings = ExperimentSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    exports: ExportSettings = ExportSettings()
    workers_max: int | None = None
    """Most workers, on each node of a cluster."""
    cluster: str | None = None
    """Address of a Ray cluster whose nodes send the requests; None: this machine."""
    require_valid: bool | tuple[str, ...] = False
    """The exit status is 1 unless the certificate is VALID: that of the run (True), or of the load and these metrics."""
    max_error_rate: float | None = 0.0
    """Share of failed requests, from 0 to 1, above which the exit status is 1; None: 1 only if no request succeeds."""
    assertions: tuple[str, ...] = ()
    """Conditions on metrics, of which every one must hold, or the exit status is 1."""
    goodput: str = ""
    """Objectives for single requests, as `metric:limit` pairs."""
    reader_rate: float | None = None
    """Tokens per second of the reader for whom streams are judged."""
    until: str = ""
    """Target precision at which the run ends, such as `p99 time_to_first_token ±5%`."""
    command: str = ""
    """The command line with secrets redacted, for the artifacts."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about the arguments."""

    @property
    def called_aiperf(self) -> bool:
        """True if the program was called by the name aiperf."""
        return self.command.startswith("aiperf ")

    @property
    def watches_records(self) -> bool:
        """True if a rule reads the records while the run sends."""
        return self.experiment.find_max is not None or bool(self.until) or self.load.stop_on_overload
