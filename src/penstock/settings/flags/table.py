"""The flag table of `profile`, as `flags.flag.read_groups` reads it."""

from __future__ import annotations

from penstock.settings.arrival_patterns import ARRIVAL_PATTERNS
from penstock.settings.endpoint_types import BUILTIN, PLUGIN_GROUP
from penstock.settings.flags.flag import read_groups

ENDPOINT_TYPES = tuple(BUILTIN)
_CACHE_BUST = (
    *("none", "system_prefix", "system_suffix", "first_turn_prefix", "first_turn_suffix"),
    *("warmup_isolation_system", "warmup_isolation_first_turn"),
)

_TABLE = """\
Endpoint
--model-names, --model, -m NAME[,NAME] | list models comma_separated
    Name of the model (required). For several models, give a comma list, or repeat the flag.
--model-selection-strategy | enum model_selection choices=round_robin|random|weighted
    How several models share the conversations: in turn, at random, or at random by --model-weights (weighted).
    [default: round_robin]
--model-weights WEIGHT,WEIGHT | list model_weights comma_separated penstock_only
    Relative shares of the models, in their order: with 3,1 the first one gets three quarters of the conversations.
--endpoint-type TYPE | enum endpoint.type choices={endpoint_types} \
        unsupported_choices=solido_rag|video_generation \
        plugin_group={plugin_group}
    API of the server: {listed_endpoint_types}. The last two send to the path in --url. [default: chat]
--custom-endpoint, --endpoint /PATH | str endpoint.path url
    Request path to use instead of the endpoint type's default; starts with a slash.
--streaming | bool endpoint.streaming
    Request streamed replies. Time to first token is measured only with this flag.
--url, -u URL... | list endpoint.urls url
    Base URL of the server; http:// is the default scheme. Requests use several URLs in turn: give them after one flag,
    or repeat the flag. mock:// is a model server inside Penstock with known timing. [default: http://localhost:8000]
--url-strategy | enum - choices=round_robin
    How several URLs share the requests. [default: round_robin]
--api-key KEY | str endpoint.api_key secret
    API key, sent as a bearer token. It appears in no output. - reads it from standard input. By default the key in
    OPENAI_API_KEY is sent to api.openai.com and to servers on this machine.
--api-key-file FILE | path endpoint.api_key_file penstock_only
    Read the API key from this file.
--api-key-env NAME | str endpoint.api_key_env penstock_only
    Read the API key from this environment variable.
--header, -H NAME:VALUE | headers endpoint.headers secret
    HTTP header to add to each request: Name:Value or a JSON object; repeatable. Values appear in no output.
--extra-inputs KEY:VALUE... | extra endpoint.extra
    Fields to add to each request body: key:value pairs separated by spaces or commas, or a JSON object. Numbers, true,
    false, null and JSON lists keep their type; "quotes" make a value a string.
--request-timeout-seconds | seconds endpoint.timeout_s
    Count a request as failed when it takes longer than this. [default: 21600 (6 hours)]
--connection-reuse-strategy | enum endpoint.connections choices=pooled|never|sticky-user-sessions
    Reuse connections (pooled), open a new one for each request (never), or one for each conversation, which no other
    uses and which is closed at its end (sticky-user-sessions). [default: pooled]
--session-header NAME | str endpoint.session_header
    Name of the header that carries the id of the conversation, the same in all its requests. [default:
    X-Correlation-ID]
--wait-for-model-timeout SECONDS | float readiness.timeout_s ge=0
    Before the first request, wait up to this many seconds until the server is ready. [default: 0 (do not wait)]
--wait-for-model-mode | enum readiness.mode choices=models|inference|both
    The server is ready when it lists the model (models), answers a request for one token (inference), or does both.
    [default: inference]
--wait-for-model-interval | seconds readiness.interval_s
    Time between two checks whether the server is ready. [default: 5]
--insecure | bool endpoint.verify_tls stored_value=false penstock_only
    Do not verify the server's TLS certificate.
--proxy URL | str endpoint.proxy url penstock_only
    HTTP proxy for all connections: http://host:port, with user:password@ before the host if it asks for them.
--trust-env | bool endpoint.trust_env penstock_only
    Use the proxies in HTTP_PROXY, HTTPS_PROXY and NO_PROXY, which are ignored otherwise.
--follow-cross-origin-redirects | bool endpoint.cross_origin_redirects penstock_only
    Follow redirects (307, 308) to other servers too, without the API key and the headers of --header. Redirects within
    a server are always followed.
--transport, --transport-type | enum - choices=http
    The transport protocol. [default: http]
--use-legacy-max-tokens | bool endpoint.legacy_max_tokens
    For chat: send the length limit as max_tokens instead of max_completion_tokens.
--use-server-token-count | bool endpoint.server_token_count
    Use the token counts in the server's replies, and count no tokens locally.
--per-chunk-usage | bool endpoint.per_chunk_usage
    For streamed chat with --use-server-token-count: ask for usage in every chunk, so that inter-token latency excludes
    all tokens of the first chunk.

Cache reset and profiler of the server
--reset-kv-cache | bool server_calls.reset_cache
    Before each run, clear the prefix cache of each server with a POST request.
--reset-kv-cache-path /PATH | str server_calls.reset_path url
    Path of this request. [default: /reset_prefix_cache]
--reset-kv-cache-timeout-seconds | seconds server_calls.reset_timeout_s
    Time limit of this request. [default: 30]
--server-profiler | bool server_calls.profiler
    Start the profiler of each server before the profiling phase, and stop it afterwards, with POST requests.
--server-profiler-start-path /PATH | str server_calls.start_path url
    Path of the request that starts it. [default: /start_profile]
--server-profiler-stop-path /PATH | str server_calls.stop_path url
    Path of the request that stops it. [default: /stop_profile]
--server-profiler-timeout-seconds | seconds server_calls.profiler_timeout_s
    Time limit of each of these requests. A profiler may write its file before it answers. [default: 300]

Load
--concurrency | count load.concurrency sweepable
    Number of requests in flight at once. With a rate, the maximum number in flight. [default: 1; with a rate,
    unlimited]
--request-rate PER_SECOND | float load.rate gt=0 hard_min=0.0001 sweepable
    Send this many requests per second, without waiting for earlier replies. All turns of a conversation count; the next
    turn of a conversation, once its reply and delay are over, comes before a new conversation.
--conversation-rate PER_SECOND | float load.conversation_rate gt=0 hard_min=0.0001 sweepable penstock_only
    Start this many conversations per second. Their next turns follow the replies and are not counted.
--arrival-pattern, --request-rate-mode | enum load.arrivals choices={arrival_patterns}
    Gaps between the arrivals of a rate: random, as from independent users (poisson), equal (constant), or random with a
    chosen evenness (gamma). concurrency_burst, without a rate, starts all slots at once, as is the default. [default:
    poisson]
--arrival-smoothness, --vllm-burstiness SHAPE | float load.smoothness gt=0 hard_min=0.001 hard_max=1_000_000 sweepable
    Evenness of gamma arrivals (their shape): below 1 in bursts, 1 as poisson, above 1 more even. Selects gamma.
--concurrency-ramp-duration | seconds load.concurrency_ramp_s sweepable
    Raise the concurrency from 1 to its value in equal steps over this many seconds.
--prefill-concurrency | count load.prefill_concurrency sweepable
    Number of requests that may wait for the first part of their reply at once. With --streaming, this limits how many
    prompts the server processes at a time.
--prefill-concurrency-ramp-duration | seconds load.prefill_ramp_s sweepable
    Raise --prefill-concurrency from 1 to its value in equal steps over this many seconds.
--request-rate-ramp-duration | seconds load.rate_ramp_s sweepable
    Raise the rate from 0 to its value over this many seconds.
--request-rate-series FILE | path load.rate_series
    The rate over time, as [{"timeS": 0, "qps": 5}, {"timeS": 60, "qps": 20}] or a JSON file with that. It moves
    linearly between the points and stays at the last one.
--request-count, --num-requests | count load.requests sweepable
    Stop after this many requests. [default: the whole file once; synthetic: 10, or twice the concurrency if that is
    more]
--conversation-num, --num-conversations, --num-sessions | count load.conversations sweepable
    Stop after starting this many conversations, and finish those. Also the number of synthetic conversations.
--benchmark-duration | seconds load.duration_s sweepable
    Stop sending new requests after this many seconds.
--until PRECISION | str until penstock_only
    End when the 95 % confidence interval of a figure is this narrow, for example 'p99 time_to_first_token ±5%' or 'avg
    request_latency +-10' (in the metric's unit). --request-count or --benchmark-duration is the limit.
--benchmark-grace-period SECONDS | float load.grace_s ge=0 allows_inf
    After --benchmark-duration, wait this many seconds for the requests in flight. [default: 30]
--failed-request-threshold SHARE | float load.max_failed_share ge=0 le=1 sweepable
    End the run when more than this share of the requests has failed, from 0 to 1, after 10 requests, or as many as
    --concurrency if that is more.
--stop-on-overload | bool load.stop_on_overload penstock_only
    End when the server falls behind the rate: the number of requests in flight grows steadily, by more than chance. In a
    sweep over rates, leave out the higher ones.
--request-cancellation-rate PERCENT | float load.cancellation_percent gt=0 le=100 sweepable
    Percentage of the profiled requests whose connection is closed before the reply has ended.
--request-cancellation-delay SECONDS | float load.cancellation_delay_s ge=0 sweepable
    Close the connection of a cancelled request this many seconds after the request was sent. [default: 0]
--workers-max, --max-workers | count workers_max
    Number of processes that send requests; fewer are used when fewer requests are in flight, and never more than 64.
    [default: depends on the cores and the load]
--cluster auto|ray://HOST:PORT | str cluster penstock_only
    Send from the nodes of a Ray cluster: auto for the one of this machine, or its address. --workers-max is then the
    number of processes on each node. [default: this machine sends]

Users
--user-centric-rate PER_SECOND | float load.user_rate gt=0 hard_min=0.0001
    Let --num-users users together send this many requests per second: each sends a turn of its conversation every
    users/rate seconds, and a new user follows when it is over.
--num-users | count load.users hard_max=1_000_000 sweepable
    Number of users of --user-centric-rate.

Recorded schedule
--fixed-schedule | bool load.schedule.on
    Send each request at its timestamp in the dataset, without waiting for earlier replies. [default: on if
    --custom-dataset-type names a trace with timestamps]
--no-fixed-schedule | bool load.schedule.on stored_value=false
    Ignore the timestamps of a trace.
--fixed-schedule-auto-offset | bool load.schedule.auto_offset
    Start the schedule at the first request's timestamp; with =false, at time zero of the recording. [default: true]
--fixed-schedule-start-offset MS | float load.schedule.start_ms ge=0 hard_max=1_000_000_000_000_000
    Skip requests recorded before this time, and start the schedule there.
--fixed-schedule-end-offset MS | float load.schedule.end_ms ge=0 hard_max=1_000_000_000_000_000
    Skip requests recorded after this time.
--replay-speedup FACTOR | float load.schedule.speedup gt=0 hard_min=0.0001
    Replay the recorded times this many times faster. [default: 1]

Warmup
--warmup-request-count, --num-warmup-requests N | int warmup.requests ge=0
    Send this many requests first; results exclude them. The load is that of the run, unless other flags set it.
    [default: 0]
--num-warmup-sessions | count warmup.conversations
    Send this many conversations first, all turns of each.
--warmup-duration | seconds warmup.duration_s
    Send requests for this many seconds first. With several limits, the first one that is reached ends the warmup.
--warmup-grace-period SECONDS | float warmup.grace_s ge=0 allows_inf
    After --warmup-duration, wait this many seconds for the requests in flight, and cancel the others. [default:
    unlimited]
--warmup-concurrency | count warmup.concurrency
    Number of requests in flight at once during the warmup. [default: --concurrency]
--warmup-prefill-concurrency | count warmup.prefill_concurrency
    Number of requests that may wait for the first part of their reply at once during the warmup. [default:
    --prefill-concurrency]
--warmup-request-rate PER_SECOND | float warmup.rate gt=0 hard_min=0.0001
    Requests per second during the warmup. [default: the rate of the run]
--warmup-user-centric-rate PER_SECOND | float warmup.user_rate gt=0 hard_min=0.0001 penstock_only
    Requests per second of all users together during the warmup. [default: the rate of the run]
--warmup-num-users | count warmup.users penstock_only
    Users of --warmup-user-centric-rate. [default: --num-users]
--warmup-arrival-pattern | enum warmup.arrivals choices={arrival_patterns}
    Gaps between the arrivals of the warmup. concurrency_burst has no rate: it starts a request when one ends. [default:
    --arrival-pattern]
--warmup-concurrency-ramp-duration | seconds warmup.concurrency_ramp_s
    Raise the concurrency of the warmup from 1 to its value in equal steps over this many seconds. [default:
    --concurrency-ramp-duration]
--warmup-prefill-concurrency-ramp-duration | seconds warmup.prefill_ramp_s
    Raise the prefill concurrency of the warmup from 1 to its value in equal steps over this many seconds. [default:
    --prefill-concurrency-ramp-duration]
--warmup-request-rate-ramp-duration | seconds warmup.rate_ramp_s
    Raise the rate of the warmup from 0 to its value over this many seconds. [default: --request-rate-ramp-duration]

Sweeps
--sweep | enum experiment.sweep choices=auto penstock_only
    auto: measure a single stream, then raise the concurrency until the throughput no longer grows, at most to
    --concurrency (default 256), and look for the lowest concurrency that saturates the server.
--sweep-type | enum experiment.combine choices=grid|zip
    With comma-separated lists of numbers for several flags, such as --concurrency 1,8,64 --isl 100,1000: measure all
    combinations (grid), or the first values of all lists, then the second ones (zip). [default: grid]
--parameter-sweep-cooldown-seconds SECONDS | float experiment.point_pause_s ge=0 hard_max=86_400
    Pause between the points of a sweep. [default: 0]
--parameter-sweep-same-seed, --no-parameter-sweep-same-seed | bool experiment.same_seed
    Use the same seed, and so the same prompts, at every point; else --random-seed plus the number of the point.
    [default: false]
--parameter-sweep-mode | enum experiment.order choices=repeated|independent
    Order of repeated runs: all points once, then again (repeated), or all runs of a point, then the next point
    (independent). [default: repeated]
--no-sweep-table | bool experiment.table stored_value=false
    Print no table of all points.

Search for the largest load
--find-max | enum experiment.find_max choices=concurrency|request-rate penstock_only
    Find the largest concurrency or request rate at which the server meets every --slo, in one run with few requests.
--slo OBJECTIVE | list experiment.slos comma_separated penstock_only
    Objective of --find-max: a percentile of a metric and its limit in the metric's unit, such as 'p99
    time_to_first_token<300', or 'request_error_rate<1' (percent). Repeat it for more.
--search-min LOAD | float experiment.search_min gt=0 hard_max=1_000_000 penstock_only
    Lowest load of --find-max: requests in flight, or requests per second. [default: 1]
--search-max LOAD | float experiment.search_max gt=0 hard_max=1_000_000 penstock_only
    Highest load of --find-max: requests in flight, or requests per second. [default: 1024]
--search-level-requests N | count experiment.level_requests hard_max=10_000_000 penstock_only
    Requests after which a load of --find-max ends that is too close to the limit to be decided. [default: 5,000; 10,000 for
    percentiles above p95]
--search-recipe RECIPE | enum experiment.recipe choices=max-concurrency-under-sla|max-throughput-ttft-sla|\
max-throughput-itl-sla|max-goodput-under-slo|concurrency-ramp|prefill-ttft-curve|decode-itl-curve|pareto-sweep
    A prepared search or grid with a small file of its result: max-concurrency-under-sla, max-throughput-ttft-sla,
    max-throughput-itl-sla, max-goodput-under-slo, concurrency-ramp, prefill-ttft-curve, decode-itl-curve or pareto-sweep.
--concurrency-min | count experiment.search_min hard_max=1_000_000
    Lowest concurrency of --search-recipe, as --search-min. [default: 1]
--concurrency-max | count experiment.search_max hard_max=1_000_000
    Highest concurrency of --search-recipe, as --search-max. [default: 1024]
--ttft-sla-ms MS | float experiment.ttft_sla_ms gt=0
    Limit of --search-recipe for the time to first token.
--itl-sla-ms MS | float experiment.itl_sla_ms gt=0
    Limit of --search-recipe for the inter-token latency.
--tpot-sla-ms MS | float experiment.tpot_sla_ms gt=0
    Another name for --itl-sla-ms.
--e2e-sla-ms MS | float experiment.e2e_sla_ms gt=0
    Limit of --search-recipe for the request latency.
--error-rate-sla SHARE | float experiment.error_rate_sla gt=0 hard_max=0.99
    Limit of --search-recipe for the share of failed requests, between 0 and 1.
--slo-attainment-fraction SHARE | float experiment.slo_attainment gt=0 le=1 hard_min=0.001
    Share of the requests that have to meet the limits of --search-recipe; more than 0.999 is tested as 0.999. [default:
    0.95; none for max-goodput-under-slo]
--degradation-threshold SHARE | float experiment.degradation_threshold gt=0 hard_max=100
    concurrency-ramp: share by which the knee exceeds the lowest concurrency. [default: 0.2]
--degradation-metric-tag METRIC | str experiment.degradation_metric
    concurrency-ramp: metric that tells the knee. [default: request_latency]
--degradation-stat | enum experiment.degradation_stat choices=avg|p50|p90|p95|p99
    concurrency-ramp: statistic of this metric. [default: p99]
--concurrency-steps | count experiment.concurrency_steps ge=2 hard_max=1000
    Number of concurrencies of concurrency-ramp and decode-itl-curve. [default: 8 and 6]
--isl-min | tokens experiment.isl_min
    Shortest prompt of prefill-ttft-curve. [default: 256]
--isl-max | tokens experiment.isl_max
    Longest prompt of prefill-ttft-curve. [default: 32768]
--isl-steps | count experiment.isl_steps ge=2 hard_max=1000
    Number of prompt lengths of prefill-ttft-curve. [default: 8]
--osl-min | tokens experiment.osl_min
    Shortest reply of decode-itl-curve. [default: 64]
--osl-max | tokens experiment.osl_max
    Longest reply of decode-itl-curve. [default: 1024]
--osl-steps | count experiment.osl_steps ge=2 hard_max=1000
    Number of reply lengths of decode-itl-curve. [default: 4]
--isl-osl-pairs ISL/OSL[,...] | str experiment.isl_osl_pairs
    Lengths of prompts and replies for pareto-sweep, which measures each with each --concurrency (default
    1,4,16,64,256), for example 128/128,2048/256.

Repeated runs
--num-profile-runs | count experiment.runs le=10
    Repeat the run this many times, and report means with confidence intervals. [default: 1]
--profile-run-cooldown-seconds SECONDS | float experiment.run_pause_s ge=0 hard_max=86_400
    Pause between repeated runs. [default: 0]
--confidence-level LEVEL | float experiment.confidence gt=0 hard_min=0.01 hard_max=0.9999
    Confidence level of the intervals, between 0 and 1. [default: 0.95]
--profile-run-disable-warmup-after-first, --no-profile-run-disable-warmup-after-first | bool experiment.warmup_once
    Warm up before the first of the repeated runs only; with --no-…, before each of them. [default: true]
--set-consistent-seed, --no-set-consistent-seed | bool experiment.fixed_seed
    Use seed 42 for repeated runs if --random-seed is missing, so that all send the same prompts. [default: true]
--vary-seed-per-trial, --no-vary-seed-per-trial | bool experiment.seed_per_run
    Use another seed, and so other prompts, in each of the repeated runs. [default: false]
--convergence-metric METRIC | str experiment.convergence_metric
    Repeat at most --num-profile-runs times, and stop when this metric is stable, after 3 runs at the earliest.
--convergence-stat | enum experiment.convergence_stat choices=avg|p50|p90|p95|p99|min|max
    Statistic of the metric that has to be stable. [default: avg]
--convergence-threshold LIMIT | float experiment.convergence_limit gt=0 hard_max=1
    The metric is stable when the figure of --convergence-mode is at most this, between 0 and 1. [default: 0.1; for cv
    0.05]
--convergence-mode | enum experiment.convergence_mode choices=ci_width|cv|distribution
    ci_width: width of the confidence interval / mean; cv: standard deviation / mean of the runs; distribution: largest
    distance (Kolmogorov-Smirnov) of the last run's requests from the earlier ones'. [default: ci_width]

Input
--config, -f FILE | path config_file
    Read the settings from this YAML file; other flags override it. `config init` writes one to begin with.
--input-file PATH | path input.file
    Read the prompts from this file or folder. Without this flag, prompts are synthetic.
--custom-dataset-type FORMAT | str input.format
    Format of the input file: {formats}. [default: detected from the file]
--public-dataset | enum input.public choices=sharegpt
    Send the prompts of a dataset on the Hugging Face hub. It is downloaded into the hub's cache once (670 MB).
--sessions ID[,ID] | list input.sessions comma_separated penstock_only
    Send only the sessions of the file with these ids: a comma list, or repeat the flag.
--dataset-sampling-strategy | enum input.sampling choices=sequential|shuffle|random
    Order of the prompts: as in the file, shuffled in every round, or drawn at random. [default: sequential]
--num-dataset-entries, --num-prompts | count input.entries
    Number of different synthetic prompts, of requests drawn from a random_pool (by default 100), or of prompts of a
    sharegpt file (by default 1000). [default: derived from the load]
--prompt-batch-size, --batch-size-text, --batch-size, -b | count input.batch hard_max=10_000
    Number of texts in one synthetic request. [default: 1]
--prompt-corpus | enum input.corpus choices=sonnet|coding|random
    What synthetic prompts are made of: lines of Shakespeare's sonnets, program code, or random words of the tokenizer's
    vocabulary. [default: English sentences]
--cache-bust PLACE | enum input.cache_bust choices={cache_bust}
    Put a marker into each conversation so that a prefix cache does not find it: system_prefix, system_suffix,
    first_turn_prefix or first_turn_suffix; in the warmup only: warmup_isolation_system or warmup_isolation_first_turn.
    [default: none]
--random-seed N | int input.seed ge=0 hard_max=9_223_372_036_854_775_807
    Seed for prompts, their order and arrival times: equal seeds give equal runs. [default: a new seed for each run]

Input and output length
--prompt-input-tokens-mean, --synthetic-input-tokens-mean, --isl | tokens input.input_tokens_mean sweepable short=isl
    Mean length of a synthetic prompt, in tokens. [default: 550]
--prompt-input-tokens-stddev, --synthetic-input-tokens-stddev, --isl-stddev TOKENS | float input.input_tokens_stddev \
        ge=0 hard_max=10_000_000 sweepable short=isl_stddev
    Standard deviation of the prompt length; with 0 all prompts have the mean length. [default: 0]
--prompt-input-tokens-block-size, --synthetic-input-tokens-block-size, --isl-block-size | tokens input.block_size
    Number of tokens that each of the hash_ids of a trace stands for. [default: 512, and 16 for bailian_trace]
--prompt-output-tokens-mean, --output-tokens-mean, --osl | tokens input.output_tokens_mean sweepable short=osl
    Mean of the reply length limit in each request, in tokens. Without this flag, requests have no limit. [default: no
    limit]
--prompt-output-tokens-stddev, --output-tokens-stddev, --osl-stddev TOKENS | float input.output_tokens_stddev ge=0 \
        hard_max=10_000_000 sweepable short=osl_stddev
    Standard deviation of the reply length limit. [default: 0]
--seq-dist, --sequence-distribution PAIRS | str input.length_pairs
    Pairs of prompt and reply length in tokens, each with its percentage of the requests: 256,128:40;512,256:60. 256|10
    has a standard deviation of 10.
--random-range-ratio RATIO | str input.range_ratio
    Draw prompt and reply lengths uniformly from mean x (1 - ratio) to mean x (1 + ratio), as vLLM does. {"input": 0.3,
    "output": 0.5} sets two ratios.
--random-corpus-style | enum input.range_style choices=vllm|sglang
    Range of --random-range-ratio: around the mean (vllm), or from mean x ratio to the mean (sglang). [default: vllm]

Changes of a trace
--synthesis-speedup-ratio FACTOR | float input.synthesis.speedup gt=0 hard_max=1_000_000
    Divide the timestamps and delays of a trace by this factor. [default: 1]
--synthesis-prefix-len-multiplier FACTOR | float input.synthesis.prefix_length ge=0 hard_max=1000
    Factor for the length of the leading blocks that several prompts share. [default: 1]
--synthesis-prefix-root-multiplier | count input.synthesis.roots hard_max=1_000_000
    Divide the conversations at random among this number of copies of the shared blocks. [default: 1]
--synthesis-prompt-len-multiplier FACTOR | float input.synthesis.prompt_length ge=0 hard_max=1000
    Factor for the length of the rest of each prompt, which no other prompt has. [default: 1]
--synthesis-output-len-multiplier FACTOR | float input.synthesis.output_length ge=0 hard_max=1000
    Factor for the reply lengths of a trace. [default: 1]
--synthesis-max-isl | tokens input.synthesis.max_input
    Leave out requests of a trace with a longer prompt, after the other changes. [default: no limit]
--synthesis-max-osl | tokens input.synthesis.max_output
    Upper limit of the reply lengths of a trace. [default: no limit]

Conversations
--conversation-turn-mean, --session-turns-mean | count input.conversation.turns_mean hard_max=10_000 sweepable
    Mean number of turns in a conversation. Each request contains the earlier turns and replies. [default: 1]
--conversation-turn-stddev, --session-turns-stddev N | float input.conversation.turns_stddev ge=0 hard_max=10_000
    Standard deviation of the number of turns. [default: 0]
--conversation-turn-delay-mean, --session-turn-delay-mean MS | float input.conversation.delay_mean_ms ge=0
    Mean delay between a reply and the next turn. [default: 0]
--conversation-turn-delay-stddev, --session-turn-delay-stddev MS | float input.conversation.delay_stddev_ms ge=0
    Standard deviation of that delay. [default: 0]
--conversation-turn-delay-ratio, --session-delay-ratio FACTOR | float input.conversation.delay_ratio ge=0
    Multiply every delay between turns by this factor, including the delays in a file. [default: 1]
--shared-system-prompt-length | tokens input.conversation.system_tokens
    Length of one synthetic system prompt that all requests share, in addition to the prompt length.
--system-prompt TEXT | str input.system
    System prompt of every conversation, synthetic or from a file.
--system-prompt-file FILE | path input.system_file
    The same, read from a file in UTF-8.
--prompt-prefix-pool-size, --prefix-prompt-pool-size, --num-prefix-prompts N | int input.conversation.prefixes ge=0 \
        hard_max=1_000_000
    Number of different texts; the first prompt of each conversation begins with one of them, drawn at random. [default:
    0]
--prompt-prefix-length, --prefix-prompt-length TOKENS | int input.conversation.prefix_tokens ge=0 hard_max=10_000_000
    Length of these texts, in addition to the prompt length. [default: 0]
--user-context-prompt-length | tokens input.conversation.context_tokens
    Length of a user message, different for each conversation, that precedes its first prompt.

Synthetic images
--image-width-mean PIXELS | float input.images.width_mean ge=0 le=16_384
    Mean image width. With --image-height-mean, adds an image to each turn. [default: 0, no images]
--image-width-stddev PIXELS | float input.images.width_stddev ge=0 hard_max=16_384
    Standard deviation of the image width. [default: 0]
--image-height-mean PIXELS | float input.images.height_mean ge=0 le=16_384
    Mean image height. [default: 0, no images]
--image-height-stddev PIXELS | float input.images.height_stddev ge=0 hard_max=16_384
    Standard deviation of the image height. [default: 0]
--image-format | enum input.images.format choices=png|jpeg|random
    Image file format; random draws a format for each image. [default: jpeg]
--image-batch-size, --batch-size-image N | int input.images.batch ge=0 hard_max=1000
    Number of images in each turn. [default: 1]

Synthetic audio
--audio-length-mean SECONDS | float input.audio.seconds_mean ge=0 le=3600
    Mean length of a clip. Adds an audio clip to each turn. [default: 0, no audio]
--audio-length-stddev SECONDS | float input.audio.seconds_stddev ge=0 hard_max=3600
    Standard deviation of the clip length. [default: 0]
--audio-format | enum input.audio.format choices=wav|mp3
    Audio file format. [default: wav]
--audio-sample-rates KHZ[,KHZ] | list input.audio.rates comma_separated
    Sample rates in kHz; each clip draws one. [default: 16]
--audio-depths BITS[,BITS] | list input.audio.depths comma_separated
    Bits per sample: 8, 16, 24 or 32; each clip draws one. MP3 files ignore it. [default: 16]
--audio-num-channels | count input.audio.channels le=2
    Number of channels: 1 is mono, 2 is stereo. [default: 1]
--audio-batch-size, --batch-size-audio N | int input.audio.batch ge=0 hard_max=1000
    Number of clips in each turn. [default: 1]

Synthetic rankings
--rankings-passages-mean | count input.rankings.passages_mean hard_max=100_000
    Mean number of passages that each request of a rankings endpoint type has. [default: 1]
--rankings-passages-stddev N | int input.rankings.passages_stddev ge=0 hard_max=100_000
    Standard deviation of the number of passages. [default: 0]
--rankings-passages-prompt-token-mean | tokens input.rankings.passage_tokens_mean
    Mean length of a passage, in tokens. [default: 550]
--rankings-passages-prompt-token-stddev TOKENS | int input.rankings.passage_tokens_stddev ge=0 hard_max=10_000_000
    Standard deviation of the length of a passage, in tokens. [default: 0]
--rankings-query-prompt-token-mean | tokens input.rankings.query_tokens_mean
    Mean length of a query, in tokens. [default: 550]
--rankings-query-prompt-token-stddev TOKENS | int input.rankings.query_tokens_stddev ge=0 hard_max=10_000_000
    Standard deviation of the length of a query, in tokens. [default: 0]

Tokenizer
--tokenizer NAME | str tokenizer.name
    Tokenizer that counts tokens: a folder, a tokenizer.json, a Hugging Face id, tekken, or builtin (no network).
    [default: the model's tokenizer, else builtin]
--tokenizer-revision REVISION | str tokenizer.revision
    Branch, tag or commit of a tokenizer on the Hugging Face hub. [default: main]
--apply-chat-template | bool tokenizer.apply_chat_template
    Count input tokens with the tokenizer's chat template, and make synthetic prompts shorter by what it adds.

Output
--output-artifact-dir, --artifact-dir FOLDER | path output.folder
    Write the files into this folder. [default: artifacts/MODEL-TYPE-LOAD]
--results-url URL | str output.remote url penstock_only
    After the report, copy the folder to this URL of fsspec, such as s3://bucket/folder or gs://bucket/folder. [default:
    not copied]
--profile-export-prefix, --profile-export-file NAME | str output.prefix
    Prefix of the exported file names, instead of profile_export.
--export-level, --profile-export-level | enum output.export_level choices=summary|records|raw
    Write the summary only, also one record per request, or also the bytes of each reply (raw). [default: records]
--export FORMAT | list output.exports comma_separated penstock_only
    Also write the record of each request in this format: parquet.
--export-http-trace | bool output.http_trace
    Add the HTTP phases of each request to its record.
--export-outputs-json | bool output.outputs_json
    Write the text of each successful reply, with its main metrics, to outputs.json.
--slice-duration SECONDS | float output.slice_s ge=0.01
    Also write the metrics of each slice of the run, this many seconds long.
--no-html | bool output.html stored_value=false penstock_only
    Do not write report.html, the page with the charts of the run.
--show-trace-timing | bool output.show_http
    Print the table of HTTP phases.
--ui-type, --ui | enum output.ui choices=dashboard|simple|none
    Show the run on a full screen (dashboard), as a progress bar (simple), or only its results (none). [default:
    dashboard on a terminal that can show it, otherwise simple]
--quiet, -q | bool output.quiet penstock_only
    Print only errors, and a certificate that is not VALID.
--log-level | enum log_level choices=TRACE|DEBUG|INFO|NOTICE|WARNING|SUCCESS|ERROR|CRITICAL
    TRACE and DEBUG have the effect of --verbose; other levels have no effect in this version. [default: INFO]
--verbose, -v | bool output.verbose
    Also print what Penstock chose (addresses, processes, connections, seed, tokenizer), and at the end all tables and
    notes instead of those that fit a screen.
--extra-verbose, -vv | bool output.verbose
    The same as --verbose in this version.

Validity and exit status
--require-valid [METRIC...] | list require_valid implied= penstock_only
    Exit with status 1 unless the certificate of the run is VALID; with names of metrics, unless it is VALID for the
    load and for these.
--max-error-rate SHARE | float max_error_rate ge=0 le=1 penstock_only
    Share of requests that may fail without exit status 1. Without this flag, a program that is called aiperf exits with
    1 only if no request succeeds, as AIPerf does. [default: 0]
--goodput OBJECTIVES | str goodput
    Count the requests that meet all these objectives, in one argument: 'time_to_first_token:200
    inter_token_latency:10'. Limits are in the units of the report; ttft, itl, tpot and e2el are accepted too.
--reader-tokens-per-second N | float reader_rate gt=0 hard_max=1_000_000 penstock_only
    Judge streams for a reader of this speed: the share of token deadlines that were met (fluidity), and the share of
    the time in which the reader waits.
--assert CONDITION | list assertions comma_separated penstock_only
    Exit with status 1 unless this holds, for example 'p99 time_to_first_token<300'. Repeat it for more.

Telemetry
--server-metrics [URL...] | list telemetry.server_metrics url implied=
    Scrape Prometheus metrics during the run: /metrics of each --url, and of the URLs given here. [default: read /metrics
    of each --url once before the first request and once after the last one]
--server-metrics-formats FORMAT... | list telemetry.server_metrics_formats
    Files to write server metrics to: json, csv, jsonl (one line per scrape), parquet (values over time). [default: json
    csv]
--telemetry-interval SECONDS | float telemetry.interval_s gt=0 hard_min=0.05 penstock_only
    Time between two scrapes of --server-metrics and of --gpu-telemetry. [default: 0.333]
--gpu-telemetry [URL...|pynvml] | list telemetry.gpu url implied=
    Collect power, utilization, memory, clocks and temperature of GPUs: from DCGM exporters (URLs; localhost:9400 and
    9401 without one), or of this machine (pynvml). [default: not collected]
--network-latency-automatic | bool telemetry.probe_network
    Measure the round trip to the servers with TCP handshakes during the run, and report latencies without it
    (network_adjusted_...).
--network-latency-ping-interval SECONDS | float telemetry.ping_interval_s gt=0 hard_min=0.05
    Time between two such handshakes with each server. [default: 1]
--network-latency-mean MS | float telemetry.network_ms ge=0
    Report latencies without this round trip, in milliseconds, and measure none.
--metrics-port | count telemetry.metrics_port le=65_535 penstock_only
    Serve the figures of the running benchmark as Prometheus metrics on this port, at /metrics. [default: not served]
--no-server-metrics | bool telemetry.no_server_metrics always_on
    Do not read the servers' metrics before and after the run.
--no-gpu-telemetry | bool telemetry.no_gpu_telemetry always_on
    Accepted for compatibility: GPU telemetry is collected only with --gpu-telemetry.

Export to other systems
--otel-url URL | str exports.otel_url url
    Send the GenAI metrics of the requests to this OTLP/HTTP receiver, such as http://localhost:4318, during the run and
    at its end. [default: not sent]
--stream | enum exports.stream choices=default|metrics unsupported_choices=timing
    What to send to --otel-url. Both values send the metrics of the requests. [default: default]
--otel-resource-attributes KEY=VALUE... | list exports.otel_attributes
    Further attributes of the resource that the metrics describe, for example deployment.environment=test.
--gen-ai-provider NAME | str exports.provider
    Value of the attribute gen_ai.provider.name. [default: the provider whose API it is, such as openai]
--mlflow-tracking-uri URI | str exports.mlflow_uri url
    After the report, log parameters, metrics and files to this MLflow server, such as http://localhost:5000. [default:
    not logged]
--mlflow-experiment NAME | str exports.mlflow_experiment
    Experiment of MLflow, which is created if it does not exist. [default: penstock]
--mlflow-run-name NAME | str exports.mlflow_run_name
    Name of the run in MLflow. [default: the name of the artifact folder]
--mlflow-tag KEY:VALUE... | list exports.mlflow_tags
    Tags of the run in MLflow.
--mlflow-parent-run-id ID | str exports.mlflow_parent
    Log the run as a child of this run of MLflow.
--mlflow-artifact-glob PATTERN... | list exports.mlflow_globs
    Files of the artifact folder to upload, for example *.json. [default: all but the log]
--wandb-project NAME | str exports.wandb_project
    After the report, log parameters, a table of the metrics and the files to this project of Weights & Biases.
    [default: not logged]
--wandb-entity NAME | str exports.wandb_entity
    Team or user who owns the project. [default: that of the API key]
--wandb-run-name NAME | str exports.wandb_run_name
    Name of the run in Weights & Biases. [default: the name of the artifact folder]
--wandb-tag TAG... | list exports.wandb_tags
    Tags of the run in Weights & Biases.

Accepted for compatibility, without effect
--record-processor-service-count, --record-processors | count ignored.record_processors
    Penstock's workers record their own requests.
--stats-interval SECONDS | float ignored.stats_interval ge=0
    The progress is always shown.
--zmq-host HOST | str ignored.zmq_host
    Penstock's processes use sockets of their own.
--zmq-ipc-path PATH | str ignored.zmq_ipc_path
    As --zmq-host.
--zmq-dual-bind | bool ignored.zmq_dual_bind
    As --zmq-host.
--tokenizer-trust-remote-code | bool ignored.trust_remote_code
    Penstock runs no code of a tokenizer.
"""

GROUPS = read_groups(
    _TABLE.replace("{endpoint_types}", "|".join(ENDPOINT_TYPES))
    .replace("{listed_endpoint_types}", ", ".join(ENDPOINT_TYPES))
    .replace("{plugin_group}", PLUGIN_GROUP)
    .replace("{arrival_patterns}", "|".join((*ARRIVAL_PATTERNS, "concurrency_burst")))
    .replace("{cache_bust}", "|".join(_CACHE_BUST))
)
