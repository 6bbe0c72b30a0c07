# SPDX-License-Identifier: MIT
"""YAML text to plain values that know their place, without YAML's surprising features.

Takes one document; gives ``Scalar``, ``Sequence`` and ``Mapping`` nodes with file and line, made of
the composer's nodes without YAML's constructors: duplicate keys, aliases (and with them "billion
laughs"), tags, deep nesting and second documents are errors. Plain scalars follow YAML 1.2's core
schema, restricted to ``true``, ``false``, ``null`` and decimal numbers; ``no``, ``0777`` and
``1:30`` are text, which no setting accepts by accident.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        root = _Composer(text, file).root()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_error(error, file)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{file}:{line}: not YAML: a control character") from None
    except (ValueError, OverflowError):
        # PyYAML does not catch the errors of int() and chr() in escapes and directives.
        raise ConfigError(f"{file}:1: not YAML: a number in an escape or directive") from None
    if root is None or (isinstance(root, Scalar) and root.value is None):
        return Mapping({}, {}, Place(file, 1))
    if not isinstance(root, Mapping):
        raise ConfigError(f"{root.place}: expected settings, as in 'tick: 1s'")
    return root


def _syntax_error(error: yaml.MarkedYAMLError, file: str) -> str:
    """Return the line for a person; an unclosed quote is reported where it opens."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or error.context
    if error.context == "while scanning a quoted scalar" and error.context_mark:
        mark, problem = error.context_mark, "this quote is not closed"
    elif (error.context or "").startswith("while parsing a flow") and error.context_mark:
        mark = error.context_mark
        problem = "what [ or { begins here is not closed, or lacks a comma"
    elif problem and problem.startswith("found character '\\t'"):
        problem = "a tab; indent and separate by spaces"
    return f"{Place(file, mark.line + 1 if mark else 1)}: not YAML: {problem}"


_Loader: Any = yaml.SafeLoader  # its methods have no types


class _Composer(_Loader):  # type: ignore[misc]
    """PyYAML's composer, which refuses what no configuration needs before it reads on."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self._file = file
        self._depth = self._count = 0

    def root(self) -> Node | None:
        """Return the only document, None for an empty text."""
        self.get_event()  # the stream starts
        found = None
        while not self.check_event(yaml.StreamEndEvent):
            if found is not None:
                place = self._place(self.peek_event())
                raise ConfigError(f"{place}: a second document; hmd reads one per file")
            found = self.compose_document()
        return None if found is None else self._node(found)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node; ConfigError for an alias, a tag, or too much of anything."""
        event = self.peek_event()
        place = self._place(event)
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{place}: alias *{event.anchor}: write the value out instead")
        self._count += 1
        if self._count > MAX_NODES:
            raise ConfigError(f"{place}: more than {MAX_NODES} values in one file")
        if event.tag not in (None, "!"):
            raise ConfigError(f"{place}: tag {shown(event.tag)}: hmd's settings need none")
        if not isinstance(event, yaml.ScalarEvent) and self._depth >= MAX_DEPTH:
            raise ConfigError(f"{place}: nested deeper than {MAX_DEPTH} levels")
        event.anchor = None
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _place(self, marked: yaml.Event | yaml.Node) -> Place:
        assert marked.start_mark  # the parser marks every event
        return Place(self._file, marked.start_mark.line + 1)

    def _node(self, node: yaml.Node) -> Node:
        """Return a node with its place; ConfigError for a text or a key that is none."""
        place = self._place(node)
        if isinstance(node, yaml.SequenceNode):
            return Sequence([self._node(item) for item in node.value], place)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        assert isinstance(node, yaml.ScalarNode)
        text = node.value
        if any("\ud800" <= c <= "\udfff" or c == "\0" for c in text):
            raise ConfigError(f"{place}: a character that is not text")
        return Scalar(resolve(text) if node.style is None else text, place)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> Mapping:
        found = Mapping({}, {}, place)
        for key, value in node.value:
            here = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{here}: a key must be a word")
            self._node(key)
            if key.value in found.keys:
                first = found.keys[key.value].line
                raise ConfigError(f"{here}: {shown(key.value)} is already set in line {first}")
            found.keys[key.value], found.items[key.value] = here, self._node(value)
        return found


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
