"""The endpoint types: their names, and what an endpoint declares about itself.

The endpoints are in `penstock.endpoints`. One is imported when its name is used, so that `--help` imports none. Another
package can add one in the entry point group `penstock.endpoints`: the object is a class without constructor arguments that
fits `endpoints.base.Endpoint`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from penstock.errors import UserError
from penstock.plugins import ENDPOINTS, broken_plugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BUILTIN = {
    "chat": "penstock.endpoints.chat:Chat",
    "completions": "penstock.endpoints.completions:Completions",
    "responses": "penstock.endpoints.responses:Responses",
    "messages": "penstock.endpoints.messages:Messages",
    "huggingface_generate": "penstock.endpoints.huggingface_generate:HuggingFaceGenerate",
    "embeddings": "penstock.endpoints.embeddings:Embeddings",
    "chat_embeddings": "penstock.endpoints.embeddings:ChatEmbeddings",
    "nim_embeddings": "penstock.endpoints.embeddings:NimEmbeddings",
    "nim_rankings": "penstock.endpoints.rankings:NimRankings",
    "cohere_rankings": "penstock.endpoints.rankings:CohereRankings",
    "hf_tei_rankings": "penstock.endpoints.rankings:TeiRankings",
    "image_generation": "penstock.endpoints.image_generation:ImageGeneration",
    "image_edit": "penstock.endpoints.image_edit:ImageEdit",
    "image_retrieval": "penstock.endpoints.image_retrieval:ImageRetrieval",
    "audio_transcription": "penstock.endpoints.audio_transcription:AudioTranscription",
    "raw": "penstock.endpoints.raw:Raw",
    "template": "penstock.endpoints.template:Template",
}
PLUGIN_GROUP = ENDPOINTS

Input = Literal["images", "audio", "system", "turns", "messages", "passages"]
"""Inputs that a request can carry besides texts. `system` is a system prompt or a user context, `turns` are earlier turns,
and `messages` those of the chat API with their roles, tool calls and tool results. With
`passages`, the first text is a query and the others are what the server ranks."""


class Declaration(NamedTuple):
    """The declaration of an endpoint: the form of its requests, the inputs that they can carry, and what can be measured."""

    method: str = "POST"
    content_type: str = "application/json"
    accept: str = "application/json"
    """Accept header of a request for an unstreamed reply. A request for a stream accepts `text/event-stream`."""
    credential_header: str = "Authorization"
    credential: str = "Bearer {}"
    """Value of that header, with the API key in place of the braces."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of every request. A header that the user gives replaces the one of the same name."""
    streams: bool = True
    """Replies can be streams of events."""
    stream_path: str = ""
    """Path of requests for a stream, if it is another one."""
    inputs: frozenset[Input] = frozenset({"images", "audio", "messages", "system", "turns"})
    length_limits: tuple[str, ...] = ()
    """Fields of a body that limit the length of the reply; the first is sent unless the user asks for another."""
    chunk_usage: bool = False
    """The server can be asked for token counts in every chunk of a stream."""
    body_key: str | None = None
    """A key that every body has; bodies of a file without it are refused."""
    reply_options: tuple[str, ...] = ()
    """Extra inputs that say how to read replies, and are not sent."""
    input_tokens: bool = True
    """Requests have texts whose tokens are counted."""
    separate_texts: bool = False
    """The server reads each text of a request by itself, so its tokens are counted by themselves."""
    output_tokens: bool = True
    """Replies are generated token by token: their tokens are counted, and the times between them mean something."""
    title: str = "LLM Metrics"
    """Title of the console table."""
    operation: str = "chat"
    """What the server does, as the semantic conventions of OpenTelemetry call it (gen_ai.operation.name)."""
    provider: str = "openai"
    """Whose API it is (gen_ai.provider.name)."""


DEFAULT = Declaration()


class EndpointType(Protocol):
    """The part of `endpoints.base.Endpoint` that settings depend on."""

    path: str
    declaration: Declaration


def load_endpoint(name: str) -> Any:
    """Return a new `Endpoint`, or raise UserError if there is none of this name."""
    if name in BUILTIN:
        module, _, attribute = BUILTIN[name].partition(":")
        return getattr(import_module(module), attribute)()
    from importlib.metadata import entry_points  # takes 20 ms, and only plugins need it

    for plugin in entry_points(group=PLUGIN_GROUP, name=name):
        return _load_plugin(plugin)
    raise UserError(f"There is no endpoint type '{name}'; choose from {', '.join(BUILTIN)}.")


def _load_plugin(plugin: EntryPoint) -> Any:
    """Load a plugin; any exception of the other package is a user error."""
    try:
        return _with_defaults(plugin.load())()
    except Exception as error:
        raise broken_plugin(plugin, "endpoint type", error) from error


def _with_defaults(class_: type) -> type:
    """Return a class that has the defaults of `Endpoint`, from which a plugin need not be derived."""
    base = import_module("penstock.endpoints.base").Endpoint
    return class_ if base in class_.__mro__ else type(class_.__name__, (class_, base), {})


def types_that_take(input_: Input) -> list[str]:
    """Return the built-in types with a path of their own whose requests can carry this input."""
    loaded: dict[str, EndpointType] = {name: load_endpoint(name) for name in BUILTIN}
    return [name for name, type_ in loaded.items() if type_.path and input_ in type_.declaration.inputs]
