"""The language of field maps: what the members of an API's objects hold.

Each dialect has a map of its requests, replies and events. Guardrails inspect texts by that map. A member that the map does
not name is unknown and is inspected, too: its strings and keys as text, its integers for literals only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Kind = int
TEXT, NAME, LABEL, FREE, UNKNOWN, KEY, SETTING, WORD, ID, MEDIA, FILE, TOKENS, SKIP = range(13)
"""Up to UNKNOWN, a string is text.

TEXT: text, also as an integer. NAME: a text that a stream sends in one piece. LABEL: text or free-form JSON that is no input of
the model. FREE: free-form JSON, or a string that holds it: all strings, keys and integers are text. UNKNOWN: not in the map.
KEY: a key of FREE or UNKNOWN. SETTING: a number, a boolean or a protocol value (a type, a role); any other string is text.
WORD: a setting with few values. ID: searched for literals only. MEDIA: an encoded image or sound, or its URL. FILE: an encoded
file, or plain text. TOKENS: the tokens of a text, or their ids. SKIP: not inspected."""

Place = tuple[dict[str, Any], str]
"""An object and the key of its text."""
Join = Callable[[list[Any]], list[list[Place]]]


class FieldMap:
    """The members of an object by name. A list of objects has the map of its members."""

    def __init__(
        self,
        *bases: FieldMap,
        text: str = "",
        names: str = "",
        labels: str = "",
        free: str = "",
        settings: str = "",
        ids: str = "",
        media: str = "",
        files: str = "",
        tokens: str = "",
        skip: str = "",
        nested: Mapping[str, Shape] | None = None,
        by_type: Mapping[str, FieldMap] | None = None,
        others: Shape = UNKNOWN,
        string: Kind = TEXT,
        join: Join | None = None,
    ) -> None:
        """The names of each kind are separated by spaces. `bases` are maps whose members this one has, too.

        `by_type`: maps of objects with this `type`. `others`: what the members have that are not named. `string`: the kind of
        a string in place of the object. `join`: returns the texts of a list that a reader sees without a gap.
        """
        self.members: dict[str, Shape] = {}
        for base in bases:
            self.members |= base.members
        kinds = {
            TEXT: text,
            NAME: names,
            LABEL: labels,
            FREE: free,
            SETTING: settings,
            ID: ids,
            MEDIA: media,
            FILE: files,
            TOKENS: tokens,
            SKIP: skip,
        }
        for kind, listed in kinds.items():
            self.members.update(dict.fromkeys(listed.split(), kind))
        self.members.update(nested or {})
        self.by_type = by_type or {}
        self.others = others
        self.string = string
        self.join = join

    def of(self, node: dict[str, Any]) -> FieldMap:
        """Return the map of an object, which may depend on its type."""
        kind = node.get("type")
        return self.by_type.get(kind, self) if type(kind) is str else self


Shape = Kind | FieldMap


def join_parts(parts: list[Any]) -> list[list[Place]]:
    """Join the texts of content parts."""
    return [[(part, "text") for part in parts if type(part) is dict and type(part.get("text")) is str and part["text"]]]


SCHEMA = FieldMap(
    text="required description title format pattern $ref $id $schema $comment name",
    settings="minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength minItems maxItems "
    "uniqueItems minProperties maxProperties readOnly writeOnly deprecated nullable strict",
    free="default const enum examples example dependentRequired",
)
"""JSON schemas. What is not part of their vocabulary is unknown."""
SCHEMA.members.update(
    dict.fromkeys(
        [
            "items",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "if",
            "then",
            "else",
            "additionalProperties",
            "propertyNames",
            "unevaluatedProperties",
            "prefixItems",
            "contains",
            "schema",
            "json_schema",
        ],
        SCHEMA,
    )
)
SCHEMA.members.update(
    dict.fromkeys(["properties", "patternProperties", "$defs", "definitions"], FieldMap(others=SCHEMA)), type=WORD
)
