"""Loading of a configuration file and its drop-ins; every mistake is reported with its line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hmd.config.contradictions import contradictions
from hmd.config.schema import Config
from hmd.errors import ConfigError
from hmd.quantities import format_like
from hmd.yaml_document import (
    KeyPath,
    Mapping,
    locate,
    merge,
    parse_document,
    read_document,
    shown,
    values,
    written,
)

SYSTEM_FILE = Path("/etc/hmd/hmd.yaml")
RUNTIME_DROP_INS = Path("/run/hmd.d")
"""Drop-ins of ``SYSTEM_FILE`` that last until the next boot: of batch systems, one file per job.

Not below /run/hmd, which belongs to the daemon's user: root writes only where root alone may."""


def load(path: Path) -> Config:
    """Return the settings in ``path`` and its drop-ins.

    Raises ``ConfigError`` with one line ``FILE:LINE: key.path: what is wrong`` for each mistake.
    """
    return validate(read(path))


def read(path: Path) -> Mapping:
    """Return the document in ``path`` with the drop-ins ``hmd.d/*.yaml`` merged into it.

    Drop-ins apply in the order of their names: mappings merge, lists grow, values replace. Those
    of the running system (``/run/hmd.d``) apply before an administrator's.
    Raises ``ConfigError`` for a file that is not readable or not such YAML.
    """
    document = read_document(path)
    for drop_in in drop_ins(path):
        document = merge(document, read_document(drop_in))
    return document


def drop_ins(path: Path) -> list[Path]:
    """Return the drop-in files of a configuration file, in order."""
    folders = [RUNTIME_DROP_INS] if path == SYSTEM_FILE else []
    folders.append(path.with_suffix(".d"))
    return [file for folder in folders for file in sorted(folder.glob("*.yaml"))]


def loads(text: str, file: str = "<text>") -> Config:
    """Return the settings in a string; raises as ``load`` does."""
    return validate(parse_document(text.encode(), file))


def validate(document: Mapping) -> Config:
    """Return the settings of a parsed document; raises as ``load`` does."""
    try:
        config = Config.model_validate(values(document))
    except ValidationError as error:
        lines = _lines(document, error.errors(include_url=False))
        raise ConfigError("\n".join(lines)) from None
    if found := contradictions(config):
        problems = [located(document, path, text) for path, text in found]
        raise ConfigError("\n".join(problems))
    return config


def located(document: Mapping, path: KeyPath, text: str, kind: str = "") -> str:
    """Return ``FILE:LINE: kind: key.path: text``, the form of every message about a setting."""
    path = written(document, path)
    kind = f"{kind}: " if kind else ""
    return f"{locate(document, path)}: {kind}{dotted(path)}{text}"


def _lines(document: Mapping, errors: Iterable[Any]) -> list[str]:
    found = []
    for error in errors:
        path = written(document, error["loc"])
        place = locate(document, path)
        found.append((place.file, place.line, f"{place}: {dotted(path)}{_problem(error)}"))
    return [line for _, _, line in sorted(found)]


def dotted(path: KeyPath) -> str:
    """Return ``targets[0].pid: ``, or nothing for the document as a whole."""
    text = ""
    for step in path:
        # A key may be any text: one that would garble a terminal is shown escaped.
        text += (
            f"[{step}]"
            if isinstance(step, int)
            else f".{step if step.isprintable() else ascii(step)}"
        )
    return f"{text.removeprefix('.')}: " if text else ""


def _problem(error: Any) -> str:
    kind, given = error["type"], shown(error["input"])
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown setting{_did_you_mean(error['loc'])}"
    if kind == "missing":
        return "must be set"
    if kind == "literal_error":
        return f"expected {context['expected']}, not {given}"
    if kind == "value_error":
        problem = str(context["error"])
        return problem if isinstance(error["input"], dict) else f"{problem}, not {given}"
    limits = ("gt", "ge", "lt", "le")
    limit = next((format_like(context[k], error["input"]) for k in limits if k in context), "")
    expected = {
        "bool_type": "true or false",
        "int_type": "a whole number",
        "float_type": "a number",
        "string_type": "text (quote it)",
        "tuple_type": "a list",
        "model_type": "settings, as in 'key: value'",
        "model_attributes_type": "settings, as in 'key: value'",
        "greater_than": f"more than {limit}",
        "greater_than_equal": f"at least {limit}",
        "less_than": f"less than {limit}",
        "less_than_equal": f"at most {limit}",
        "string_too_short": "some text",
        "string_pattern_mismatch": "letters, digits, '.', '_' and '-', 63 at most",
    }.get(kind)
    return f"expected {expected}, not {given}" if expected else str(error["msg"])


def _did_you_mean(path: KeyPath) -> str:
    model: type[BaseModel] | None = Config
    for step in path[:-1]:
        if isinstance(step, str) and model:
            field = model.model_fields.get(step)
            model = _model_in(field.annotation) if field else None
    close = get_close_matches(str(path[-1]), _keys(model) if model else (), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section, and those of the sections in it by their path."""
    keys = list(model.model_fields)
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += [f"{name}.{key}" for key in inner.model_fields]
    return keys


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
