"""Chat templates: how a server turns the messages of a request into the text that its model reads (`--apply-chat-template`).

The template of a tokenizer is in `chat_template.jinja` or `tokenizer_config.json` beside its `tokenizer.json`. For the
installed vocabularies of Qwen it is written here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.errors import UserError
from penstock.tokens import hub
from penstock.tokens.tiktoken_vocabulary import TiktokenTokenizer
from penstock.tokens.tokenizer import Source, Tokenizer

_FILES = ("chat_template.jinja", "tokenizer_config.json")
_DOWNLOAD_S = 60.0
_QWEN_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_QWEN = """\
{%- if default_system and messages[0].role != 'system' -%}
{{ '<|im_start|>system\\n' + default_system + '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\\n' }}"""
_QWEN_SYSTEM_PROMPTS = (
    (re.compile(r"Qwen/Qwen2\.5"), "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
    (re.compile(r"Qwen/Qwen2(?![0-9.])"), "You are a helpful assistant."),
)
"""System prompts that the templates of models add to a request without one. Qwen 3 adds none."""


class RefusedMessagesError(UserError, ValueError):
    """A chat template does not take the messages of a request. After a run, that request has no input length."""


class ChatTokenizer:
    """A tokenizer with a chat template. It counts the special tokens of the template as one token each."""

    def __init__(
        self, inner: Tokenizer, template: str, variables: Mapping[str, Any], special: Sequence[str] = ()
    ) -> None:
        """`variables` are values that the template uses. `special` are the special tokens that `inner` counts as text."""
        self._inner = inner
        self._template = template
        self._variables = dict(variables)
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        self._compiled: Any = None

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def source(self) -> Source:
        return self._inner.source

    @property
    def size(self) -> int:
        return self._inner.size

    def count(self, text: str) -> int:
        return self.count_many([text])[0]

    def count_many(self, texts: Sequence[str], threads: int = 1) -> list[int]:
        if self._special is None:
            return self._inner.count_many(texts, threads)
        split = [self._special.split(text) for text in texts]
        counts = iter(self._inner.count_many([part for parts in split for part in parts], threads))
        return [sum(next(counts) for _ in parts) + len(parts) - 1 for parts in split]

    def encode(self, text: str) -> list[int]:
        return self._inner.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode(ids)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> str:
        """Return the text that the model reads. Raise RefusedMessagesError if the template does not take the messages."""
        from jinja2 import TemplateError

        plain = [{**message, "content": _text(message.get("content"))} for message in messages]
        if self._compiled is None:
            self._compiled = _compile(self._template, self.name)
        try:
            text: str = self._compiled.render(
                messages=plain, tools=tools, add_generation_prompt=True, **self._variables
            )
        except (TemplateError, TypeError, LookupError, ValueError) as error:
            raise RefusedMessagesError(
                f"The chat template of the tokenizer '{self.name}' does not take these messages ({error}); leave out "
                "--apply-chat-template."
            ) from None
        return text

    def added_tokens(self, *roles: str) -> int:
        """Return how many tokens the template adds to the texts of messages with these roles."""
        messages = [{"role": role, "content": "Hello"} for role in roles]
        return self.count(self.render(messages)) - len(roles) * self.count("Hello")


def with_chat_template(tokenizer: Tokenizer, name: str, revision: str) -> ChatTokenizer:
    """Return the tokenizer with its chat template. `name` is the folder, file or hub id that it was loaded from."""
    if isinstance(tokenizer, TiktokenTokenizer):
        if tokenizer.source == "builtin" or name.startswith("Qwen/"):
            system = next((text for pattern, text in _QWEN_SYSTEM_PROMPTS if pattern.match(name)), None)
            return ChatTokenizer(tokenizer, _QWEN, {"default_system": system}, _QWEN_SPECIAL)
        raise _missing(name, "it is not in its file")
    path = os.path.expanduser(name)
    if os.path.exists(path):
        folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
        files = {file: _content(os.path.join(folder, file)) for file in _FILES}
    else:
        files = {file: _from_hub(name, revision, file) for file in _FILES}
    return _from_files(tokenizer, name, files["chat_template.jinja"], files["tokenizer_config.json"])


def _from_files(tokenizer: Tokenizer, name: str, jinja: bytes | None, config_text: bytes | None) -> ChatTokenizer:
    config: dict[str, Any] = {}
    if config_text is not None:
        try:
            config = msgspec.json.decode(config_text, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise _missing(name, f"its tokenizer_config.json is not valid ({error})") from None
    template = jinja.decode() if jinja is not None else config.get("chat_template")
    if isinstance(template, list):  # several with names
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise _missing(name, "neither chat_template.jinja nor tokenizer_config.json has one")
    tokens = {key: _token(value) for key, value in config.items() if key.endswith("_token")}
    return ChatTokenizer(tokenizer, template, {key: value for key, value in tokens.items() if value is not None})


def _missing(name: str, reason: str) -> UserError:
    return UserError(
        f"The tokenizer '{name}' has no chat template: {reason}; leave out --apply-chat-template, or give --tokenizer one that "
        "has a template."
    )


def _token(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _text(content: Any) -> str:
    """Return the text of a message. Its parts are joined as vLLM joins them."""
    if isinstance(content, list):
        return "\n".join(
            [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        )
    return content if isinstance(content, str) else ""


def _compile(template: str, name: str) -> Any:
    """Compile a template in an environment that renders like that of the transformers package."""
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block `generation`, which marks replies for training and renders its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise _missing(name, f"it is not a valid Jinja template ({error})") from None


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _from_hub(name: str, revision: str, file: str) -> bytes | None:
    copy = hub.cached_file(name, revision, file)
    if copy is not None:
        return _content(copy)
    if hub.is_offline():
        return None
    try:
        return hub.download(name, revision, _DOWNLOAD_S, file=file)
    except hub.HubError:
        return None
