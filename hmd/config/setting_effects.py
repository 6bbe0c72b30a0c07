"""What each setting does: the docstrings below the fields of sections.

They are read from the source where a reference or a schema is made. The daemon needs none of them,
and pydantic's own search for them takes a tenth of its start.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise

from hmd.config.section import ConfigSection


def effects(section: type[ConfigSection]) -> dict[str, str]:
    """Return the effect of each setting of a section that has one, by key, as it is written."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if issubclass(kind, ConfigSection):
            found |= _docstrings(kind)
    fields = section.model_fields
    found |= {key: field.description for key, field in fields.items() if field.description}
    return {key: found[key] for key in fields if key in found}


def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings below the attributes of a class; none of one that has no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return {}  # a generated section: its fields have descriptions of their own
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
