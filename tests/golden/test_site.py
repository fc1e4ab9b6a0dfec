"""The documentation site builds without warnings, its links are valid, and its pages load nothing."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import blinkccl
from support.extras import needs

pytestmark = needs("sphinx")
pytest.importorskip("furo", reason="needs Sphinx and furo: pip install 'blink-ccl[docs]'")
pytest.importorskip("myst_parser", reason="needs myst-parser: pip install 'blink-ccl[docs]'")

ROOT = Path(__file__).parents[2]
#: Attributes that a browser loads by itself, and those that need a click.
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.places, self.loads, self.links = path, {""}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name"):
                self.places.add(value or "")
            elif (tag, name) in LOADED:
                self.loads.append(value or "")
            elif (tag, name) == ("a", "href"):
                self.links.append(value or "")


def broken(pages: dict[Path, Page], page: Page) -> list[str]:
    """The links of ``page`` to missing files and anchors, and resources that it loads from elsewhere."""
    foreign = [link for link in page.loads if urlsplit(link).netloc or urlsplit(link).scheme not in ("", "data")]
    faults = [f"{page.path}: loads {link}" for link in foreign]
    for link in [*page.loads, *page.links]:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        if not target.is_file():
            faults.append(f"{page.path}: {link}: no such file")
        elif target in pages and unquote(parts.fragment) not in pages[target].places:
            faults.append(f"{page.path}: {link}: no such place")
    return faults


def test_the_site_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    """A single test, because building the site takes nearly all of the time."""
    site = tmp_path.resolve() / "site"
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-c", "docs", "-d", tmp_path / "trees", ".", site]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    assert len(pages) > 25
    wrong = [line for page in pages.values() for line in broken(pages, page)]
    assert not wrong, "\n".join(wrong)
    styles = [path for path in site.rglob("*.css") if "url(http" in path.read_text(encoding="utf-8").replace('"', "")]
    assert not styles
    names = [
        f"blinkccl.{name}" for name in (*blinkccl.__all__, "torch.stats", "errors.BlinkError", "errors.UsageError")
    ]
    names.remove("blinkccl.BlinkError")  # among the errors
    missing = [name for name in names if name not in pages[site / "docs/reference/python.html"].places]
    assert not missing
    assert any(link.startswith("data:image/svg+xml") for link in pages[site / "docs/index.html"].loads)
    assert "blink-plan" in pages[site / "docs/reference/verbs.html"].places
