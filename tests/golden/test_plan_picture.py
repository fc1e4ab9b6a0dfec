"""The pictures of the page "See it", byte by byte, drawn by the commands of the page.

After an intended change: ``pytest tests/golden --update-golden``.
"""

import re
import shlex
from pathlib import Path

from support.pictures import words_beyond

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/howto/see-it.md"
EXPECTED = Path(__file__).parent / "expected"


def test_the_pictures_of_the_page_match_its_commands(blink, tmp_path, monkeypatch, pytestconfig):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    for command in re.findall(r"^\$ blink (.+)$", page, re.MULTILINE):
        if "--timeline" not in command:
            done = blink(*shlex.split(command))
            assert done.code == 0, done.err
    shown = re.findall(r"\]\(../../tests/golden/expected/(show-.+?\.svg)\)", page)
    assert len(shown) == 4
    for name in shown:
        drawn = Path(name).read_text(encoding="utf-8")
        if pytestconfig.getoption("--update-golden"):
            (EXPECTED / name).write_text(drawn, encoding="utf-8")
        assert drawn == (EXPECTED / name).read_text(encoding="utf-8"), name


def test_words_stay_inside_their_picture():
    assert {
        path.name: words for path in EXPECTED.glob("*.svg") if (words := words_beyond(path.read_text("utf-8")))
    } == {}
