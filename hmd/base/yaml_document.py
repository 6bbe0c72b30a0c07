# SPDX-License-Identifier: MIT
"""YAML text to plain values that know their place, without YAML's surprising features.

Takes one document; gives ``Scalar``, ``Sequence`` and ``Mapping`` nodes with file and line. It is
built from the parser's events, not from its constructors, so that duplicate keys, aliases (and
with them "billion laughs"), tags, deep nesting and second documents are errors as soon as they
occur. Plain scalars follow YAML 1.2's core schema, restricted to ``true``, ``false``, ``null`` and
decimal numbers; ``no``, ``0777`` and ``1:30`` are text, which no setting accepts by accident.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from hmd.base.errors import ConfigError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
MAX_NODES = 20_000

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\Z")
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\.[0-9]{1,17}\Z")
_CONSTANTS: dict[str, bool | None] = {
    "true": True,
    "false": False,
    "null": None,
    "~": None,
    "": None,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A file and a line, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        """Return ``FILE:LINE``, the form that compilers use."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value."""

    value: str | int | float | bool | None
    place: Place


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of nodes."""

    items: list[Node]
    place: Place


@dataclass(frozen=True, slots=True)
class Mapping:
    """Nodes by key, with the place of each key."""

    items: dict[str, Node]
    keys: dict[str, Place]
    place: Place


Node = Scalar | Sequence | Mapping

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the top of a document to a setting, as in ("targets", 0, "pid")."""


def read_document(path: Path) -> Mapping:
    """Return the mapping in a file; an empty file is an empty mapping.

    Raises ``ConfigError`` for a file that cannot be read, is too large, or is not valid.
    """
    try:
        # Opening a FIFO waits for a writer; that of a shell's <(COMMAND) has one.
        if path.is_fifo() and not str(path).startswith(("/dev/fd/", "/proc/")):
            raise ConfigError(f"{path}: is a FIFO, not a file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path}: larger than {MAX_BYTES // 1024} KiB: not a configuration of hmd"
        )
    return parse_document(data, str(path))


def parse_document(data: bytes, file: str) -> Mapping:
    """Return the mapping that YAML bytes hold; ``file`` names them in errors.

    Raises ``ConfigError`` for anything else.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: not UTF-8 text") from None
    try:
        return _Builder(file).build(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_error(error, file)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{file}:{line}: not YAML: a control character") from None
    except (ValueError, OverflowError):
        # PyYAML does not catch the errors of int() and chr() in escapes and directives.
        raise ConfigError(f"{file}:1: not YAML: a number in an escape or directive") from None


def _syntax_error(error: yaml.MarkedYAMLError, file: str) -> str:
    """Return the line for a person; an unclosed quote is reported where it opens."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or error.context
    if error.context == "while scanning a quoted scalar" and error.context_mark:
        mark, problem = error.context_mark, "this quote is not closed"
    elif problem and problem.startswith("found character '\\t'"):
        problem = "a tab; indent and separate by spaces"
    return f"{Place(file, mark.line + 1 if mark else 1)}: not YAML: {problem}"


@dataclass(slots=True)
class _Open:
    """A collection whose end is still to come; ``key`` waits for its value."""

    node: Sequence | Mapping
    key: str | None = None


@dataclass(slots=True)
class _Builder:
    """Nodes from parser events, without recursion."""

    file: str
    open: list[_Open] = field(default_factory=list)
    root: Node | None = None
    nodes: int = 0

    def build(self, events: Iterator[yaml.Event]) -> Mapping:
        documents = 0
        for event in events:
            assert event.start_mark  # the parser marks every event
            place = Place(self.file, event.start_mark.line + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise ConfigError(f"{place}: a second document; hmd reads one per file")
            elif isinstance(event, yaml.AliasEvent):
                raise ConfigError(f"{place}: alias *{event.anchor}: write the value out instead")
            elif isinstance(event, yaml.CollectionEndEvent):
                self.open.pop()
            elif isinstance(event, yaml.NodeEvent):
                self._node(event, place)
        if self.root is None or (isinstance(self.root, Scalar) and self.root.value is None):
            return Mapping({}, {}, Place(self.file, 1))
        if not isinstance(self.root, Mapping):
            raise ConfigError(f"{self.root.place}: expected settings, as in 'tick: 1s'")
        return self.root

    def _node(self, event: yaml.NodeEvent, place: Place) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ConfigError(f"{place}: more than {MAX_NODES} values in one file")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise ConfigError(f"{place}: tag {shown(tag)}: hmd's settings need none")
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event, place)
            return
        mapping = isinstance(event, yaml.MappingStartEvent)
        node = Mapping({}, {}, place) if mapping else Sequence([], place)
        if len(self.open) >= MAX_DEPTH:
            raise ConfigError(f"{place}: nested deeper than {MAX_DEPTH} levels")
        self._place_in_parent(node)
        self.open.append(_Open(node))

    def _scalar(self, event: yaml.ScalarEvent, place: Place) -> None:
        if any("\ud800" <= c <= "\udfff" or c == "\0" for c in event.value):
            raise ConfigError(f"{place}: a character that is not text")
        parent = self.open[-1] if self.open else None
        if parent and isinstance(parent.node, Mapping) and parent.key is None:
            self._key(parent, event.value, place)
        else:
            plain = event.style is None
            self._place_in_parent(Scalar(resolve(event.value) if plain else event.value, place))

    @staticmethod
    def _key(parent: _Open, key: str, place: Place) -> None:
        assert isinstance(parent.node, Mapping)
        if key in parent.node.keys:
            first = parent.node.keys[key].line
            raise ConfigError(f"{place}: {shown(key)} is already set in line {first}")
        parent.node.keys[key] = place
        parent.key = key

    def _place_in_parent(self, node: Node) -> None:
        if not self.open:
            self.root = node
            return
        parent = self.open[-1]
        if isinstance(parent.node, Sequence):
            parent.node.items.append(node)
        elif parent.key is None:
            raise ConfigError(f"{node.place}: a key must be a word")
        else:
            parent.node.items[parent.key] = node
            parent.key = None


def resolve(text: str) -> str | int | float | bool | None:
    """Return the value of a plain scalar: constant, decimal number or text."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.match(text):
        return int(text)
    if _DECIMAL.match(text):
        return float(text)
    return text


def values(node: Node) -> object:
    """Return a node as dicts, tuples and scalars."""
    if isinstance(node, Mapping):
        return {key: values(item) for key, item in node.items.items()}
    if isinstance(node, Sequence):
        return tuple(values(item) for item in node.items)
    return node.value


def merge(base: Mapping, over: Mapping) -> Mapping:
    """Return ``base`` with a drop-in merged into it: mappings merge, lists grow, values replace."""
    items, keys = dict(base.items), dict(base.keys)
    for key, node in over.items.items():
        mine = items.get(key)
        if isinstance(mine, Mapping) and isinstance(node, Mapping):
            items[key] = merge(mine, node)
            continue
        if isinstance(mine, Sequence) and isinstance(node, Sequence):
            items[key] = Sequence(mine.items + node.items, mine.place)
            continue
        items[key], keys[key] = node, over.keys[key]
    return Mapping(items, keys, base.place)


def locate(root: Mapping, path: KeyPath) -> Place:
    """Return the place of a key path, or of its nearest parent that the file contains."""
    node: Node = root
    place = root.place
    for step in path:
        if isinstance(node, Mapping) and step in node.items:
            place, node = node.keys[str(step)], node.items[str(step)]
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            place = node.place
        else:
            break
    return place


def written(root: Mapping, path: KeyPath) -> KeyPath:
    """Return a key path without the list index if the file has a single value for a list."""
    node: Node = root
    for depth, step in enumerate(path):
        if isinstance(node, Scalar) and isinstance(step, int):
            return path[:depth]
        if isinstance(node, Mapping) and step in node.items:
            node = node.items[str(step)]
        elif isinstance(node, Sequence) and isinstance(step, int):
            node = node.items[step]
    return path


def shown(value: object) -> str:
    """Return a value for an error message: quoted if text, one line, at most 60 characters."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else text[:57] + "..."
