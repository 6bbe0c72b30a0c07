# SPDX-License-Identifier: MIT
"""Digests of the code that a result depends on: modules, and what they import of the project.

Takes names of modules; gives the files that their imports reach, also those inside functions, and a
digest of their code. Comments and docstrings do not count. Results that are kept by such a digest
outlast changes of code that they do not run.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from bench.suite.ground_truth import code_of

ROOT: Final = Path(__file__).resolve().parent.parent
_PACKAGES: Final = ("hmd", "bench")


@cache
def closure_digest(*modules: str) -> str:
    """Return a digest of the code of modules and of all that they import of the project."""
    state = hashlib.blake2b(digest_size=16)
    for path in source_closure(*modules):
        state.update(f"{path.relative_to(ROOT)}\0{code_of(path)}\0".encode())
    return state.hexdigest()


def source_closure(*modules: str) -> list[Path]:
    """Return the files of modules and of all that they import of the project, sorted.

    Raises FileNotFoundError for a module that is none of the project's.
    """
    waiting, found = list(modules), set[Path]()
    for module in modules:
        if _file(module) is None:
            raise FileNotFoundError(f"there is no module {module} in {ROOT}")
    while waiting:
        path = _file(waiting.pop())
        if path is not None and path not in found:
            found.add(path)
            waiting += _imported(ast.parse(path.read_text()))
    return sorted(found)


def _imported(tree: ast.AST) -> Iterator[str]:
    """Return the names that a module imports; of ``from a import b``, both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _file(module: str) -> Path | None:
    """Return the file of a module or package of the project, None if there is none."""
    if module.partition(".")[0] not in _PACKAGES:
        return None
    path = ROOT.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in files if each.exists()), None)
