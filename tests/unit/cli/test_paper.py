"""``blink paper``: table, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path


def test_json_has_every_number_with_its_basis(blink) -> None:
    found = json.loads(blink("paper", "R1", "N5", "--json").out)
    assert found["schema_version"] == 2
    assert [claim["id"] for claim in found["claims"]] == ["R1", "N5"]
    assert sum(found["verdicts"].values()) == 2
    for claim in found["claims"]:
        assert claim["values"]
        assert all(value["basis"] for value in claim["values"])


def test_documents_and_ids_choose(blink) -> None:
    ids = [claim["id"] for claim in json.loads(blink("paper", "d", "n1", "--json").out)["claims"]]
    assert ids[-1] == "N1"
    assert {f"R{i}" for i in range(1, 10)} <= set(ids)


def test_markdown_is_a_table_per_document(blink, tmp_path: Path) -> None:
    path = tmp_path / "claims.md"
    assert blink("paper", "R1", "N1", "--markdown", str(path)).code == 0
    text = path.read_text()
    assert text.count("| id | claim | published | ours | verdict | why |") == 2


def test_what_cannot_be_written_is_refused_before_any_work(blink, tmp_path: Path) -> None:
    blink("paper", "R1", "--markdown", str(tmp_path / "no" / "where")).assert_refused("cannot be written")
