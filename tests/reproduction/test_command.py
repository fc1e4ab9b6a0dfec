"""``python -m reproduction``: table, files, and refusals."""

import json
from pathlib import Path


def test_json_has_every_number_with_its_basis(reproduction) -> None:
    document = json.loads(reproduction("R1", "N5", "--json").out)
    assert document["schema_version"] == 2
    assert [claim["id"] for claim in document["claims"]] == ["R1", "N5"]
    assert sum(document["verdicts"].values()) == 2
    for claim in document["claims"]:
        assert claim["values"]
        assert all(value["basis"] for value in claim["values"])


def test_documents_and_ids_choose(reproduction) -> None:
    ids = [claim["id"] for claim in json.loads(reproduction("d", "n1", "--json").out)["claims"]]
    assert ids[-1] == "N1"
    assert {f"R{i}" for i in range(1, 10)} <= set(ids)


def test_markdown_is_a_table_per_document(reproduction, tmp_path: Path) -> None:
    path = tmp_path / "claims.md"
    assert reproduction("R1", "N1", "--markdown", str(path)).code == 0
    text = path.read_text()
    assert text.count("| id | claim | published | ours | verdict | why |") == 2


def test_what_cannot_be_written_is_refused_before_any_work(reproduction, tmp_path: Path) -> None:
    reproduction("R1", "--markdown", str(tmp_path / "no" / "where")).assert_refused("cannot be written")


def test_a_claim_that_is_none_is_refused(reproduction) -> None:
    reproduction("B99").assert_refused("no claim 'B99'; expected a document (A, B, C, D, E) or an id like B6")


def test_a_claim_is_told_with_its_verdict_its_numbers_and_their_basis(reproduction) -> None:
    assert reproduction("R1", "R8").out.splitlines()[:7] == [
        "2 claims: 1 reproduced, 1 contradicted",
        "",
        "D  NCCL ring vs tree",
        "R1   reproduced: Each GPU sends 2(N-1)/N times the data: 1.875 for 16 GPUs. (Why Ring is Bandwidth-Optimal)",
        "        most that a rank sends: published 1.875 S, ours 1.875 S",
        "        least that a rank sends: published 1.875 S, ours 1.875 S",
        "        by links out of each rank of plain-ring on 2x hgx-h100",
    ]
