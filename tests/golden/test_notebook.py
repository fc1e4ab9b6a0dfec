"""The notebook in examples/ runs in Jupyter, with the same output as in its last run (``--update-golden``)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.extras import needs

pytestmark = needs("jupyter")
pytest.importorskip("nbclient", reason="needs nbclient: pip install 'blink-ccl[notebook]'")
pytest.importorskip("ipykernel", reason="needs ipykernel: pip install 'blink-ccl[notebook]'")
pytest.importorskip("networkx", reason="needs networkx: pip install 'blink-ccl[networkx]'")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "plan.ipynb"
#: A separate process, because Jupyter's own warnings are not Blink's.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=60, kernel_name="python3", record_timing=False, coalesce_streams=True).execute()
notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
nbformat.write(notebook, sys.argv[2])
"""


def shown(notebook: dict[str, Any]) -> list[str]:
    """The plain text output of every code cell."""
    cells = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    texts = [[output.get("text") or output["data"]["text/plain"] for output in outputs] for outputs in cells]
    return ["".join(line for text in parts for line in text) for parts in texts]


def test_the_notebook_prints_its_stored_output(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    update = request.config.getoption("--update-golden")
    ran = NOTEBOOK if update else tmp_path / "ran.ipynb"
    command = [sys.executable, "-c", EXECUTE, NOTEBOOK, ran]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    executed = json.loads(ran.read_text(encoding="utf-8"))
    assert shown(executed) == shown(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    assert all(shown(executed))
