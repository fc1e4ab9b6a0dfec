"""``blink paper``: table, files, and what is refused."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import pytest

from blinkccl.paper.claim import judge
from blinkccl.paper.registry import chosen
from blinkccl.paper.table import page, published_number


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


def test_the_page_is_whole_and_needs_nothing_else(blink, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "paper.html"
    ended = blink("paper", "N5", "--html", str(path))
    assert ended.code == 0, ended.err
    text = path.read_text()
    assert text.startswith("<!doctype html>")
    assert "<p>1 claim: " in text
    assert "data:image/png;base64," in text
    assert "http" not in text.split("</style>")[1].replace("https://", "http://")


def test_a_page_says_what_each_published_number_is_of() -> None:
    rows = [judge(claim) for claim in chosen(["R1", "N5"])]
    text = page(rows, [])
    for row in rows:
        numbers = [f"{v.what}: {published_number(v)}" for v in row.values if v.published is not None]
        assert numbers
        assert f'<td class="numbers">{"<br>".join(map(escape, numbers))}<td>' in text


@pytest.mark.parametrize("option", ["--html", "--markdown"])
def test_what_cannot_be_written_is_refused_before_any_work(blink, option: str, tmp_path: Path) -> None:
    blink("paper", "R1", option, str(tmp_path / "no" / "where")).assert_refused("cannot be written")
