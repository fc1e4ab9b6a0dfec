"""Published cases, in our own words: the doctor diagnoses each as its authors did, and healthy ones as healthy."""

import tomllib
from pathlib import Path

import pytest

from blinkccl.apps.doctor.diagnose import diagnose
from blinkccl.apps.doctor.reading import read_files
from blinkccl.show.text import plain
from blinkccl.topology.spec import parse_gpus

CORPUS = sorted(path.parent for path in Path(__file__).parent.glob("corpus/*/case.toml"))


@pytest.mark.parametrize("folder", CORPUS, ids=lambda folder: folder.name)
def test_what_was_found(folder):
    from blinkccl.apps.doctor.evidence import MachineRead

    expected = tomllib.loads((folder / "case.toml").read_text("utf-8"))
    assert expected["source"].startswith("https://") or expected["source"].startswith("public ")
    files = sorted(path for path in folder.iterdir() if path.name != "case.toml")
    case = read_files(files)
    if "gpus" in expected:
        case.gpus = parse_gpus(expected["gpus"], case.of(MachineRead)[-1].topology)
    diagnosis = diagnose(case)
    text = diagnosis.text(plain)
    wrong = {finding.cause for finding in diagnosis.findings if finding.wrong}
    print(text)
    assert set(expected["found"]) <= wrong
    if not expected["found"]:
        assert not wrong
    judged = expected.get("judged", True)
    assert bool(diagnosis.not_judged) is not judged or bool(expected["found"])
    assert diagnosis.healthy is (judged and not expected["found"])
    flat = " ".join(text.split())
    for words in expected.get("says", ()):
        assert words in flat
    for words in expected.get("never", ()):
        assert words not in flat


def test_there_are_enough():
    assert len(CORPUS) >= 15
