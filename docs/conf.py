"""The documentation site: Sphinx reads the repository's Markdown pages where they lie, furo shows them offline.

``make docs`` builds it into ``build/site``. What the code can say itself is put into the pages as they are read: the
picture of the first page, and what every verb prints as its help.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from pathlib import Path
from tempfile import TemporaryDirectory

from sphinx.application import Sphinx

project = "Blink"
author = "the authors of Blink"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/*.md", "examples/*.md", "CONTRIBUTING.md"]
exclude_patterns = [".*", "build", "native", "src", "tests"]

# Pages link to each other as they do in the repository; sources that they name can be downloaded from the site.
myst_heading_anchors = 4
# Parts of a heading's address: what the repository's own view makes of it.
suppress_warnings = ["myst.header"]
highlight_language = "none"
smartquotes = False

html_theme = "furo"
html_title = "Blink"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False

napoleon_google_docstring = False
napoleon_use_param = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {name: name for name in ("Array", "Spec", "Paint")}
# The pages are the same with and without PyTorch.
autodoc_mock_imports = ["torch"]

SITE_START = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=docs/index.html">
<title>Blink</title>
<a href="docs/index.html">Blink</a>
"""


def picture() -> str:
    """Where no NVLink ring is: the trees of a plan on a DGX-1V, and what holds them back."""
    import blinkccl

    with TemporaryDirectory() as folder:
        drawing = Path(folder) / "plan.svg"
        blinkccl.plan("allreduce", "dgx-1v", gpus=[1, 4, 5, 6]).show(drawing)
        data = b64encode(drawing.read_bytes()).decode()
    alt = "GPUs 1, 4, 5 and 6 of a DGX-1V, the two trees of an AllReduce on their NVLinks, and the cut around GPU 4"
    return f'<img style="width: 46rem" alt="{alt}" src="data:image/svg+xml;base64,{data}">'


def verbs() -> str:
    """A section for each verb, with what ``blink VERB --help`` prints."""
    from typer.testing import CliRunner

    from blinkccl.cli.app import app as blink

    os.environ["COLUMNS"] = "110"
    sections = []
    for name in [None, *(command.name for command in blink.registered_commands)]:
        words = [*([name] if name else []), "--help"]
        said = CliRunner().invoke(blink, words, prog_name="blink")
        assert said.exit_code == 0, said.output
        sections.append(f"## {' '.join(['blink', *words[:-1]])}\n\n```text\n{said.output.strip()}\n```\n")
    return "\n".join(sections)


#: What stands in a page as ``<!-- generated: NAME -->`` is made when the page is read.
GENERATED = {"picture": picture, "verbs": verbs}


def generate(app: Sphinx, page: str, source: list[str]) -> None:
    """Puts what is made of the code into a page."""
    for name, made in GENERATED.items():
        mark = f"<!-- generated: {name} -->"
        if mark in source[0]:
            source[0] = source[0].replace(mark, made())


def short_signature(*said: object) -> tuple[str | None, ...]:
    """Of an alias in a union Sphinx shows how it keeps it."""
    signature, gives = said[-2:]
    return tuple(part and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", str(part)) for part in (signature, gives))


def write_start(app: Sphinx, error: Exception | None) -> None:
    """The folder's own index.html leads to the first page."""
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(SITE_START, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", generate)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("build-finished", write_start)
