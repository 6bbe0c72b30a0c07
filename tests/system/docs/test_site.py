# SPDX-License-Identifier: MIT
"""The site builds without broken links and renders the documents as intended."""

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from config_reference import topics

from tests.system.docs.blocks import ROOT, documents


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        # Not --quiet: with it, warnings do not count.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Page(HTMLParser):
    """What a page loads and links to, and the paragraphs of its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.paragraphs: list[str] = []
        self._in_paragraph = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("img", "script") and given.get("src"):
            self.loaded.append(str(given["src"]))
        if tag == "link" and given.get("href"):
            self.loaded.append(str(given["href"]))
        if tag == "a" and given.get("href"):
            self.linked.append(str(given["href"]))
        if tag == "p":
            self._in_paragraph = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_paragraph = self._in_paragraph and tag != "p"

    def handle_data(self, data: str) -> None:
        if self._in_paragraph:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def pages(site: Path) -> list[Page]:
    found = [Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    assert len(found) >= len([file for file in documents() if file.startswith("docs/")]) > 0
    return found


def files(page: Page, urls: list[str]) -> Iterator[tuple[str, Path]]:
    for url in urls:
        if not re.match(r"\w+:|//|#", url):
            yield url, (page.path.parent / url.split("#")[0].split("?")[0]).resolve()


def test_site_has_a_page_per_document(site: Path) -> None:
    for file in documents():
        if file.startswith("docs/"):
            assert (site / file.removeprefix("docs/")).with_suffix(".html").is_file()


def test_site_images_and_links_resolve(pages: list[Page]) -> None:
    for page in pages:
        for url, path in files(page, page.loaded + page.linked):
            assert path.exists(), f"{page.path}: {url}"


def test_site_loads_no_external_resource(pages: list[Page]) -> None:
    for page in pages:
        assert not [url for url in page.loaded if re.match(r"\w+:|//", url)], page.path


def test_site_renders_lists_and_tables(pages: list[Page]) -> None:
    # Forges take a list or a table right below a line of text; the site wants a blank line.
    for page in pages:
        for text in page.paragraphs:
            assert not re.search(r"\n *(- |\d+\. |\| )|\|--", text), f"{page.path}: {text}"


def test_root_document_links_resolve() -> None:
    for file in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\((?!\w+:|#)([^)#]+)", (ROOT / file).read_text()):
            assert (ROOT / link).exists(), f"{file}: {link}"


def test_site_shows_setting_effects_verbatim(site: Path) -> None:
    """Backslashes of patterns too: without them '\\[stack\\]' matches nearly every mapping."""
    page = (site / "reference/configuration.html").read_text()
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page, re.DOTALL)
    shown = {html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells}
    effects = [setting.effect for topic in topics() for setting in topic.settings]
    assert any("\\" in effect for effect in effects)
    assert [effect for effect in effects if effect not in shown] == []
