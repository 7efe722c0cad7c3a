"""Flags for the server under test: its URL, its API, and how to connect to it."""

from __future__ import annotations

from penstock.settings.endpoint_types import BUILTIN, PLUGIN_GROUP
from penstock.settings.flags.flag import Flag, Group, seconds

__all__ = ["ENDPOINT", "ENDPOINT_TYPES"]

ENDPOINT_TYPES = tuple(BUILTIN)

ENDPOINT = Group(
    "Endpoint",
    (
        Flag(
            "--model-names",
            "list",
            "Name of the model (required). For several models, give a comma list, or repeat the flag.",
            aliases=("--model", "-m"),
            target="models",
            metavar="NAME[,NAME]",
            comma_separated=True,
        ),
        Flag(
            "--model-selection-strategy",
            "enum",
            "How several models share the conversations: in turn, at random, or at random by --model-weights (weighted).",
            target="model_selection",
            choices=("round_robin", "random", "weighted"),
            default="round_robin",
        ),
        Flag(
            "--model-weights",
            "list",
            "Relative shares of the models, in their order: with 3,1 the first one gets three quarters of the conversations.",
            target="model_weights",
            metavar="WEIGHT,WEIGHT",
            comma_separated=True,
            penstock_only=True,
        ),
        Flag(
            "--endpoint-type",
            "enum",
            f"API of the server: {', '.join(ENDPOINT_TYPES)}. The last two send to the path in --url.",
            target="endpoint.type",
            metavar="TYPE",
            choices=ENDPOINT_TYPES,
            plugin_group=PLUGIN_GROUP,
            unsupported_choices=(
                "chat_embeddings",
                "image_edit",
                "image_retrieval",
                "nim_embeddings",
                "solido_rag",
                "video_generation",
            ),
            default="chat",
        ),
        Flag(
            "--custom-endpoint",
            "str",
            "Request path to use instead of the endpoint type's default; starts with a slash.",
            aliases=("--endpoint",),
            target="endpoint.path",
            metavar="/PATH",
            url=True,
        ),
        Flag(
            "--streaming",
            "bool",
            "Request streamed replies. Time to first token is measured only with this flag.",
            target="endpoint.streaming",
        ),
        Flag(
            "--url",
            "list",
            "Base URL of the server; http:// is the default scheme. Requests use several URLs in turn: give them after one "
            "flag, or repeat the flag. mock:// is a model server inside Penstock with known timing.",
            aliases=("-u",),
            target="endpoint.urls",
            metavar="URL...",
            url=True,
            default="http://localhost:8000",
        ),
        Flag(
            "--url-strategy",
            "enum",
            "How several URLs share the requests.",
            choices=("round_robin",),
            default="round_robin",
        ),
        Flag(
            "--api-key",
            "str",
            "API key, sent as a bearer token. It appears in no output. - reads it from standard input. By default the key in "
            "OPENAI_API_KEY is sent to api.openai.com and to servers on this machine.",
            target="endpoint.api_key",
            metavar="KEY",
            secret=True,
        ),
        Flag(
            "--api-key-file",
            "path",
            "Read the API key from this file.",
            target="endpoint.api_key_file",
            metavar="FILE",
            penstock_only=True,
        ),
        Flag(
            "--api-key-env",
            "str",
            "Read the API key from this environment variable.",
            target="endpoint.api_key_env",
            metavar="NAME",
            penstock_only=True,
        ),
        Flag(
            "--header",
            "headers",
            "HTTP header to add to each request: Name:Value or a JSON object; repeatable. Values appear in no output.",
            aliases=("-H",),
            target="endpoint.headers",
            metavar="NAME:VALUE",
            secret=True,
        ),
        Flag(
            "--extra-inputs",
            "extra",
            "Fields to add to each request body: key:value pairs separated by spaces or commas, or a JSON object. Numbers, "
            'true, false, null and JSON lists keep their type; "quotes" make a value a string.',
            target="endpoint.extra",
            metavar="KEY:VALUE...",
        ),
        seconds(
            "--request-timeout-seconds",
            "Count a request as failed when it takes longer than this.",
            "endpoint.timeout_s",
            default="21600 (6 hours)",
        ),
        Flag(
            "--connection-reuse-strategy",
            "enum",
            "Reuse connections (pooled), open a new one for each request (never), or one for each conversation, which no other "
            "uses and which is closed at its end (sticky-user-sessions).",
            target="endpoint.connections",
            choices=("pooled", "never", "sticky-user-sessions"),
            default="pooled",
        ),
        Flag(
            "--session-header",
            "str",
            "Name of the header that carries the id of the conversation, the same in all its requests.",
            target="endpoint.session_header",
            metavar="NAME",
            default="X-Correlation-ID",
        ),
        Flag(
            "--wait-for-model-timeout",
            "float",
            "Before the first request, wait up to this many seconds until the server is ready.",
            target="readiness.timeout_s",
            metavar="SECONDS",
            default="0 (do not wait)",
            ge=0,
        ),
        Flag(
            "--wait-for-model-mode",
            "enum",
            "The server is ready when it lists the model (models), answers a request for one token (inference), or does both.",
            target="readiness.mode",
            choices=("models", "inference", "both"),
            default="inference",
        ),
        seconds(
            "--wait-for-model-interval",
            "Time between two checks whether the server is ready.",
            "readiness.interval_s",
            default="5",
        ),
        Flag(
            "--insecure",
            "bool",
            "Do not verify the server's TLS certificate.",
            target="endpoint.verify_tls",
            stored_value=False,
            penstock_only=True,
        ),
        Flag(
            "--proxy",
            "str",
            "HTTP proxy for all connections: http://host:port, with user:password@ before the host if it asks for them.",
            target="endpoint.proxy",
            metavar="URL",
            url=True,
            penstock_only=True,
        ),
        Flag(
            "--trust-env",
            "bool",
            "Use the proxies in HTTP_PROXY, HTTPS_PROXY and NO_PROXY, which are ignored otherwise.",
            target="endpoint.trust_env",
            penstock_only=True,
        ),
        Flag(
            "--follow-cross-origin-redirects",
            "bool",
            "Follow redirects (307, 308) to other servers too, without the API key and the headers of --header. Redirects "
            "within a server are always followed.",
            target="endpoint.cross_origin_redirects",
            penstock_only=True,
        ),
        Flag(
            "--transport",
            "enum",
            "The transport protocol.",
            aliases=("--transport-type",),
            choices=("http",),
            default="http",
        ),
        Flag(
            "--use-legacy-max-tokens",
            "bool",
            "For chat: send the length limit as max_tokens instead of max_completion_tokens.",
            target="endpoint.legacy_max_tokens",
        ),
        Flag(
            "--use-server-token-count",
            "bool",
            "Use the token counts in the server's replies, and count no tokens locally.",
            target="endpoint.server_token_count",
        ),
        Flag(
            "--per-chunk-usage",
            "bool",
            "For streamed chat with --use-server-token-count: ask for usage in every chunk, so that inter-token latency "
            "excludes all tokens of the first chunk.",
            target="endpoint.per_chunk_usage",
        ),
    ),
)
