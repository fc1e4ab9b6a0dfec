"""The documentation site: Sphinx reads the Markdown pages in place, and furo displays them offline.

``make docs`` builds it into ``build/site``. Two parts are generated from the code while pages are read: the picture of
the first page, and the help of every verb.
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

# Links between pages are those of the repository; linked sources can be downloaded from the site.
myst_heading_anchors = 4
# Anchors of headings follow the repository's own view.
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
    """A plan without an NVLink ring: its trees on a DGX-1V, and the cut that limits them."""
    import blinkccl

    with TemporaryDirectory() as folder:
        drawing = Path(folder) / "plan.svg"
        blinkccl.plan("allreduce", "dgx-1v", gpus=[1, 4, 5, 6]).show(drawing, "256K")
        data = b64encode(drawing.read_bytes()).decode()
    alt = "GPUs 1, 4, 5 and 6 of a DGX-1V, the two trees of an AllReduce on their NVLinks, and the cut around GPU 4"
    return f'<img style="width: 46rem" alt="{alt}" src="data:image/svg+xml;base64,{data}">'


def verbs() -> str:
    """A section for each verb, with the output of ``blink VERB --help``."""
    from typer.testing import CliRunner

    from blinkccl.cli.app import app as blink

    os.environ["COLUMNS"] = "110"
    sections = []
    for name in [None, *(command.name for command in blink.registered_commands)]:
        words = [*([name] if name else []), "--help"]
        result = CliRunner().invoke(blink, words, prog_name="blink")
        assert result.exit_code == 0, result.output
        sections.append(f"## {' '.join(['blink', *words[:-1]])}\n\n```text\n{result.output.strip()}\n```\n")
    return "\n".join(sections)


#: Generators of the parts marked by ``<!-- generated: NAME -->`` in a page.
GENERATED = {"picture": picture, "verbs": verbs}


def generate(app: Sphinx, page: str, source: list[str]) -> None:
    """Insert the generated parts into a page."""
    for name, made in GENERATED.items():
        mark = f"<!-- generated: {name} -->"
        if mark in source[0]:
            source[0] = source[0].replace(mark, made())


def short_signature(*arguments: object) -> tuple[str | None, ...]:
    """The signature with aliases by name, because Sphinx prints its own wrapper for an alias in a union."""
    signature, gives = arguments[-2:]
    return tuple(part and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", str(part)) for part in (signature, gives))


def write_start(app: Sphinx, error: Exception | None) -> None:
    """Write the folder's index.html, which redirects to the first page."""
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "index.html").write_text(SITE_START, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connect the hooks; Sphinx calls this."""
    app.connect("source-read", generate)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("build-finished", write_start)
