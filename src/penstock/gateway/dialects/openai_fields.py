"""The field maps that the dialects of OpenAI share."""

from __future__ import annotations

from penstock.gateway.dialects.field_map import MEDIA, SCHEMA, SETTING, TEXT, FieldMap, join_parts

_OBJECT = FieldMap(settings="type object status role phase index format detail", ids="id", tokens="logprobs")

_LINK = FieldMap(media="url", settings="detail", string=MEDIA)
_SOUND = FieldMap(_OBJECT, media="data", text="transcript", settings="expires_at")
_FILE = FieldMap(files="file_data", media="file_url", ids="file_id", text="filename")
_ANNOTATION = FieldMap(_OBJECT, _FILE, text="title url", settings="start_index end_index", ids="container_id")
PARTS = FieldMap(
    _OBJECT,
    _FILE,
    text="text refusal",
    nested={
        **dict.fromkeys(("image_url", "video_url"), _LINK),
        **dict.fromkeys(("input_audio", "audio", "audio_url"), _SOUND),
        "file": _FILE,
        "annotations": _ANNOTATION,
        "url_citation": _ANNOTATION,
        "cache_control": FieldMap(settings="type ttl"),
    },
    join=join_parts,
)
PARTS.members["content"] = PARTS
"""Content parts of a message or an output."""

_FUNCTION = FieldMap(names="name", free="arguments", text="input", settings="strict", nested={"description": TEXT})
_CALL = FieldMap(_OBJECT, nested={"function": _FUNCTION, "custom": _FUNCTION})
MESSAGE = FieldMap(
    _OBJECT,
    ids="tool_call_id",
    text="refusal reasoning reasoning_content name",
    nested={
        "content": PARTS,
        "tool_calls": _CALL,
        "function_call": _FUNCTION,
        "audio": _SOUND,
        "annotations": _ANNOTATION,
        "images": PARTS,
    },
)
"""A message of a chat, or its delta."""
_FILTERS = "content_filter_results content_filter_result content_filter_offsets prompt_filter_results"
"""Verdicts of a provider's own filters."""
CHOICES = FieldMap(
    settings="index finish_reason native_finish_reason stop_reason matched_stop",
    skip=_FILTERS,
    tokens="logprobs token_ids prompt_token_ids prompt_logprobs",
    text="text",
    nested={"message": MESSAGE, "delta": MESSAGE},
)

ERROR = FieldMap(settings="type", text="message code param")
REPLY = FieldMap(
    settings="type object created service_tier",
    ids="id",
    text="provider",
    skip=f"model system_fingerprint usage obfuscation timings stats {_FILTERS}",
    tokens="prompt_token_ids prompt_logprobs",
    nested={"choices": CHOICES, "error": ERROR},
)
"""A whole reply of any route but the Responses API, and a chunk."""

_SCHEMA_FORMAT = FieldMap(settings="type strict", text="name description", nested={"schema": SCHEMA})
FORMAT = FieldMap(_SCHEMA_FORMAT, nested={"json_schema": _SCHEMA_FORMAT}, string=SETTING)
_TOOL = FieldMap(
    settings="type strict",
    text="name description",
    free="input_examples",
    nested={
        "parameters": SCHEMA,
        "input_schema": SCHEMA,
        "format": FieldMap(settings="type syntax", text="definition"),
    },
)
TOOLS = FieldMap(_TOOL, nested={"function": _TOOL, "custom": _TOOL})
TOOLS.by_type = {
    "mcp": FieldMap(
        TOOLS,
        text="server_label server_description connector_id allowed_tools",
        skip="headers authorization server_url",
        nested={"require_approval": FieldMap(string=SETTING)},
    )
}
_CHOICE = FieldMap(settings="type mode", text="name server_label")
TOOL_CHOICE = FieldMap(
    _CHOICE, nested={"function": _CHOICE, "tools": _CHOICE, "allowed_tools": _CHOICE}, string=SETTING
)

REQUEST = FieldMap(
    skip="model logit_bias",
    labels="metadata user safety_identifier prompt_cache_key cache_salt",
    ids="request_id",
    settings="object stream store temperature top_p top_k min_p n best_of seed frequency_penalty presence_penalty logprobs "
    "top_logprobs parallel_tool_calls service_tier prompt_cache_retention return_token_ids max_tokens "
    "max_completion_tokens encoding_format dimensions modalities verbosity reasoning_effort repetition_penalty "
    "length_penalty min_tokens ignore_eos skip_special_tokens spaces_between_special_tokens add_generation_prompt "
    "continue_final_message add_special_tokens include_stop_str_in_output use_beam_search priority stop_token_ids "
    "truncate_prompt_tokens prompt_logprobs include_reasoning echo",
    text="stop bad_words",
    free="chat_template_kwargs",
    nested={
        "stream_options": FieldMap(settings="include_usage include_obfuscation continuous_usage_stats"),
        "tools": TOOLS,
        "tool_choice": TOOL_CHOICE,
    },
)
"""Members of requests on more than one route."""
