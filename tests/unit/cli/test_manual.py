"""``blink --man``: every verb and option is on the page, and groff accepts it without a warning."""

import shutil
import subprocess

import pytest

from blinkccl.cli.app import command as root
from blinkccl.cli.manual import manual


def test_every_verb_and_option_is_on_the_page(blink) -> None:
    page = blink("--man").out
    assert page == manual(root)
    for name, command in root.commands.items():
        assert f".SH BLINK {name.upper()}\n" in page
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("-") and not parameter.hidden:
                    assert option.replace("-", r"\-") in page, (name, option)


def test_roff_takes_it(blink) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    page = subprocess.run(
        [groff, "-man", "-ww", "-K", "utf8", "-T", "utf8"],
        input=blink("--man").out,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (page.returncode, page.stderr) == (0, "")
    assert "blink explain allreduce" in page.stdout
