"""The server under test: where it is, what it speaks, how it is reached."""

from __future__ import annotations

from penstock.settings.flags.flag import Flag, Group

__all__ = ["ENDPOINT", "ENDPOINT_TYPES"]

ENDPOINT_TYPES = ("chat", "completions", "responses", "raw", "template")

ENDPOINT = Group(
    "Endpoint",
    (
        Flag(
            "--model-names",
            "list",
            "Model to name in each request. Required. Several take turns: a comma list, or the flag repeated.",
            aliases=("--model", "-m"),
            target="models",
            metavar="NAME[,NAME]",
            comma_separated=True,
        ),
        Flag(
            "--model-selection-strategy",
            "enum",
            "How several models share the requests.",
            choices=("round_robin",),
            unsupported_choices=("random", "weighted"),
            default="round_robin",
        ),
        Flag(
            "--endpoint-type",
            "enum",
            "The API that the server speaks. raw and template take the whole path from --url and any reply.",
            target="endpoint.type",
            choices=ENDPOINT_TYPES,
            plugin_group="penstock.endpoints",
            unsupported_choices=(
                "audio_transcription",
                "chat_embeddings",
                "cohere_rankings",
                "embeddings",
                "hf_tei_rankings",
                "huggingface_generate",
                "image_edit",
                "image_generation",
                "image_retrieval",
                "messages",
                "nim_embeddings",
                "nim_rankings",
                "solido_rag",
                "video_generation",
            ),
            default="chat",
        ),
        Flag(
            "--custom-endpoint",
            "str",
            "Path to call in place of the endpoint type's own; starts with a slash.",
            aliases=("--endpoint",),
            target="endpoint.path",
            metavar="/PATH",
            url=True,
        ),
        Flag(
            "--streaming",
            "bool",
            "Ask for the reply as a stream of events. Without it there is no time to first token.",
            target="endpoint.streaming",
        ),
        Flag(
            "--url",
            "list",
            "Base URL of the server; http:// is assumed. Several, after one flag or repeated, take turns. "
            "mock:// is a model server inside Penstock whose timing is known.",
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
            "Sent as a bearer token, and shown nowhere.",
            target="endpoint.api_key",
            metavar="KEY",
            secret=True,
        ),
        Flag(
            "--header",
            "headers",
            "HTTP header to add to each request, Name:Value or a JSON object; repeatable. Values are shown nowhere.",
            aliases=("-H",),
            target="endpoint.headers",
            metavar="NAME:VALUE",
            secret=True,
        ),
        Flag(
            "--extra-inputs",
            "extra",
            "Fields to add to each request body: key:value pairs apart by spaces or commas, or a JSON object. Numbers, "
            'true, false, null and JSON lists keep their type; "quotes" make a text.',
            target="endpoint.extra",
            metavar="KEY:VALUE...",
        ),
        Flag(
            "--request-timeout-seconds",
            "float",
            "A request that takes longer has failed.",
            target="endpoint.timeout_s",
            metavar="SECONDS",
            default="21600 (6 hours)",
            gt=0,
            hard_min=0.001,
        ),
        Flag(
            "--connection-reuse-strategy",
            "enum",
            "Keep connections open for later requests, or open one for each request.",
            target="endpoint.connections",
            choices=("pooled", "never"),
            unsupported_choices=("sticky-user-sessions",),
            default="pooled",
        ),
        Flag(
            "--insecure",
            "bool",
            "Accept any TLS certificate, also one that cannot be verified.",
            target="endpoint.verify_tls",
            stored_value=False,
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
            "For chat: name the length limit max_tokens instead of max_completion_tokens.",
            target="endpoint.legacy_max_tokens",
        ),
        Flag(
            "--use-server-token-count",
            "bool",
            "Believe the token counts in the server's replies and tokenize nothing.",
            target="endpoint.server_token_count",
        ),
    ),
)
