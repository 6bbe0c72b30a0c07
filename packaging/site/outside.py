# SPDX-License-Identifier: MIT
"""Add the files that documents link to outside of docs/ to the site.

Links work on a forge and in a plain checkout (``../../config/hmd.yaml``). mkdocs knows only
docs/, so each such file is added below ``source/`` and links to it are rewritten. A link to a
missing file stays unchanged, so that ``mkdocs build --strict`` reports it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
SOURCE = "source/"
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""Pages at the top of the checkout that the navigation has."""

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside of docs/ that a page links to."""
    for name in PAGES:
        files.append(_file(name, config))
    pages = [file for file in files if file.is_documentation_page()]
    while pages:
        page = pages.pop()
        for path in _linked(page):
            if path.startswith(DOCS) or not (ROOT / path).is_file():
                continue
            if files.get_file_from_path(_uri(path)) is None:
                files.append(added := _file(path, config))
                pages += [added] if added.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite a page's links to where the files are in the site."""
    here = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        path = _path(here, link[1])
        present = files.get_file_from_path(_uri(path)) is not None
        return posixpath.relpath(_uri(path), posixpath.dirname(here)) if present else link[1]

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(moved, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(moved, markdown[end:])])


def _file(path: str, config: Any) -> File:
    shown = InclusionLevel.INCLUDED if path in PAGES else InclusionLevel.NOT_IN_NAV
    return File.generated(config, _uri(path), abs_src_path=str(ROOT / path), inclusion=shown)


def _linked(page: File) -> Iterator[str]:
    text = _FENCE.sub("", page.content_string)
    yield from (_path(page.src_uri, link[1]) for link in _LINK.finditer(text))


def _path(page: str, link: str) -> str:
    """Return the path in the checkout of what a page of the site links to."""
    own = page.removeprefix(SOURCE) if page.startswith(SOURCE) else DOCS + page
    return posixpath.normpath(posixpath.join(posixpath.dirname(own), link))


def _uri(path: str) -> str:
    """Return where the site has a path of the checkout."""
    return path.removeprefix(DOCS) if path.startswith(DOCS) else SOURCE + path
