"""The texts in the events of a stream: pieces that continue a text, complete texts, and ends of texts.

A piece has the address of its text: the choice, item or block, and the path below it. After an event that ends a text, nothing
needs to be held back for that text, unless another one continues it without a gap: the next part, or the next message if no
other item is between them (`joined_group`).
"""

from __future__ import annotations

from typing import Any

from penstock.gateway.dialects.field_map import ID, UNKNOWN, FieldMap
from penstock.gateway.dialects.texts import Address, TextRef, Texts, walk

BREAK: Address = ("break",)
"""In place of the address prefix of an ended text: what follows is not shown as a continuation of the texts so far."""

_MAX_IDS = 64


class EventTexts:
    """Finds the texts in the events of one stream. This class knows no fields; those of the dialects do."""

    fields = FieldMap()
    """The members that any event of the dialect may have."""
    sequence_key: str | None = None
    """The member that numbers the events."""
    varying_keys: tuple[str, ...] = ()
    """Members of a delta with another value in each event: the number, and padding."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        """Ids that have been read, since every event repeats them."""
        self._clean: dict[int, dict[str, Any]] = {}
        """By the identity of a map: members without text, since most events repeat those of the last one."""

    def read(self, payload: Any, name: str) -> Texts:
        """Return the texts of an event. `name` is that of its `event:` line."""
        found = Texts()
        if type(payload) is dict:
            self._read(payload, name, found)
            self._drop_known_ids(found)
        else:
            walk([payload], UNKNOWN, "event", found)
        return found

    def _read(self, payload: dict[str, Any], name: str, found: Texts) -> None:
        """Add the texts of an event of an unknown type: strings at the same path of two events may be one text."""
        index = payload.get("index")
        walk(payload, self.fields, "event", found, (index, None, payload.get("type", name)))

    def _walk_around(
        self, node: dict[str, Any], skipped: frozenset[str], fields: FieldMap, source: str, found: Texts
    ) -> None:
        """Add the texts of all members but those in `skipped`, which `fields` skips, too."""
        members = {key: value for key, value in node.items() if key not in skipped}
        if self._clean.get(id(fields)) == members:
            return
        first = len(found.complete)
        walk(node, fields, source, found)
        if not found.tokens and all(isinstance(text, TextRef) and text.kind == ID for text in found.complete[first:]):
            self._clean[id(fields)] = members

    def _drop_known_ids(self, found: Texts) -> None:
        complete = found.complete
        if not complete:
            return
        known = self._ids
        found.complete = [
            text for text in complete if not (type(text) is TextRef and text.kind == ID and text.text in known)
        ]
        if len(known) < _MAX_IDS:
            known.update([text.text for text in found.complete if type(text) is TextRef and text.kind == ID])

    def type_of(self, payload: Any) -> str | None:
        """Return the type of an event, which its `event:` line repeats."""
        kind = payload.get("type") if type(payload) is dict else None
        return kind if type(kind) is str else None

    def identity(self, payload: dict[str, Any]) -> tuple[str, str] | None:
        """Return the id and the model of the reply, if the event has them."""
        if type(payload.get("id")) is not str:
            return None
        return payload["id"], payload["model"] if type(payload.get("model")) is str else ""

    def joined_group(self, address: Address) -> Address | None:
        """Return the key of the texts that a reader sees joined to the one at `address`, or None if there are none."""
        del address
        return None

    def separate(self, payload: dict[str, Any], address: Address, text: str) -> dict[str, Any] | None:
        """Return an event like `payload` that has only this piece, or None if there is none."""
        del payload, address, text
        return None
