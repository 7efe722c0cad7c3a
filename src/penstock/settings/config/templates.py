"""The Jinja templates of a configuration file, rendered with its `variables` and with its other keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.settings.config.document import ConfigError, Node, snake_case

if TYPE_CHECKING:
    from jinja2 import Environment

_MARKS = ("{{", "{%", "{#")
_SENT = ("template", "body", "payload_template")
"""Keys of templates that are rendered for each request."""
_LATER = ("benchmark.artifacts.user_files", "variables", "sweep.runs")
"""Paths whose templates are rendered by their readers."""


def has_template(text: object) -> bool:
    return isinstance(text, str) and any(mark in text for mark in _MARKS)


def template_environment() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


def render_data(data: Any, render: Callable[[str], Any]) -> Any:
    """Return plain data with every text that is a template replaced."""
    if isinstance(data, dict):
        return {key: render_data(value, render) for key, value in data.items()}
    if isinstance(data, list):
        return [render_data(value, render) for value in data]
    return render(data) if has_template(data) else data


def typed(text: str) -> Any:
    """Return a rendered text as a truth value or a number if it reads as one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class Templates:
    """Renders the templates of a file. `values` replace values of the file, by the names of their paths."""

    def __init__(self, root: Node, values: Mapping[tuple[str, ...], Any]) -> None:
        self._root = root
        self.file = root.file
        self._errors: list[tuple[int, str]] = []
        self.used = any(has_template(node.text) for node in _scalars(root))
        """True if the file has templates."""
        data = root.value() if root.kind == "map" else {}
        for names, value in values.items():
            _assign(data, names, value)
        body, variables = data.get("benchmark"), data.get("variables")
        self.variables: dict[str, Any] = variables if isinstance(variables, dict) else {}
        self._context = _by_name(data | (body if isinstance(body, dict) else {}))
        if self.used:
            self._environment = template_environment()
            self.variables = self._resolved()
            self._context |= self.variables
        self._check()

    def root(self) -> Node:
        return self.render(self._root)

    def render(self, node: Node) -> Node:
        """Return the node with its templates rendered, or raise `ConfigError`."""
        rendered = self._render(node) if self.used else node
        self._check()
        return rendered

    def names(self, text: str) -> set[str]:
        """Return the variables that a template uses; raise jinja2.TemplateError."""
        from jinja2 import meta

        return meta.find_undeclared_variables(self._environment.parse(text))

    def _check(self) -> None:
        if self._errors:
            raise ConfigError(self._root.file, [sentence for _, sentence in sorted(set(self._errors))])

    def _render(self, node: Node) -> Node:
        path = snake_case(node.path)
        if snake_case(node.key) in _SENT or path in _LATER:
            return node
        if not node.is_scalar:
            return replace(node, children=tuple([self._render(child) for child in node.children]))
        if not has_template(node.text):
            return node
        value = self._value(node, node.text, self._context)
        # The text of the template stands for its value in messages: an environment variable may have given it.
        return replace(node, text=str(value), kind=type(value).__name__, plain=False, variables=node.text)

    def _value(self, node: Node, text: str, context: Mapping[str, Any]) -> Any:
        from jinja2 import TemplateError

        try:
            return typed(self._environment.from_string(text).render(context))
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            known = f" (variables: {', '.join(self.variables)})" if self.variables else ""
            message = str(error).rstrip(".")
            self._errors.append((node.line, f"{node.name} has a template that cannot be rendered: {message}{known}."))
            return ""

    def _resolved(self) -> dict[str, Any]:
        """Return the variables, each rendered after those that it uses."""
        from jinja2 import TemplateError

        nodes = {child.key: child for child in _child(self._root, "variables")}
        resolved: dict[str, Any] = {}
        pending = dict(self.variables)
        while pending:
            before = len(pending)
            for name, value in list(pending.items()):
                node = nodes.get(name, self._root)
                try:
                    uses = {used for text in _texts(value) for used in self.names(text)}
                except TemplateError:  # rendering it tells the error
                    uses = set()
                if not uses & pending.keys():
                    resolved[name] = render_data(value, partial(self._value, node, context=self._context | resolved))
                    del pending[name]
            if len(pending) == before:
                node = nodes.get(next(iter(pending)), self._root)
                self._errors.append((node.line, f"{node.name} and {', '.join(pending)} refer to each other."))
                break
        return resolved


def _scalars(node: Node) -> Iterator[Node]:
    if node.is_scalar:
        yield node
    for child in node.children:
        yield from _scalars(child)


def _texts(data: Any) -> list[str]:
    found: list[str] = []
    render_data(data, found.append)
    return found


def _child(node: Node, key: str) -> tuple[Node, ...]:
    return next((child.children for child in node.children if child.key == key), ())


def _by_name(data: Any) -> Any:
    """Return data in which a list of mappings with names is a mapping, so that `phases.profiling.rate` finds its value."""
    if isinstance(data, dict):
        return {key: _by_name(value) for key, value in data.items()}
    if isinstance(data, list) and data and all(isinstance(item, dict) and "name" in item for item in data):
        return {item["name"]: _by_name(item) for item in data}
    return data


def _assign(place: Any, names: Sequence[str], value: Any) -> None:
    """Replace the value of a path of keys, such as `variables.isl` or `benchmark.phases.profiling.rate`, if there is one."""
    name, *rest = names
    if isinstance(place, list):
        entry = next((item for item in place if isinstance(item, dict) and item.get("name") == name), None)
        if entry is not None and rest:
            _assign(entry, rest, value)
    elif isinstance(place, dict):
        key = next((key for key in place if snake_case(key) == snake_case(name)), None)
        if key is None and rest and name in ("phases", "profiling"):  # the short forms of a list of one
            _assign(place, rest, value)
        elif key is None and len(rest) > 1 and name == "datasets":
            _assign(place.get("dataset"), rest[1:], value)
        elif not rest:
            place[key or name] = value
        else:
            _assign(place.setdefault(key or name, {}) if name == "variables" else place.get(key), rest, value)
