"""The page in a real browser: clicks, keys, no requests, no errors, and accessibility."""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from blinkccl.show.page import exhibit_page
from blinkccl.show.show import of_plan, of_topology
from blinkccl.topology.spec import parse_spec
from support.browser import Browser, browser_path
from support.extras import needs
from support.planned import plan

pytestmark = needs("chromium")

#: axe-core's levels of findings that exclude readers.
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(str(browser_path()), tmp_path_factory.mktemp("browser")) as opened:
        opened.size(1400, 900)
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One page of each kind, by name."""
    folder = tmp_path_factory.mktemp("pages")
    shown = {
        "plan": of_plan(plan("optimal", "dgx-1v", "1,4,5,6", "allreduce"), None),
        "cluster": of_plan(plan("optimal", "12x dgx-a100", None, "broadcast"), None),
        "machine": of_topology(parse_spec("dgx-1v")),
    }
    for name, exhibit in shown.items():
        (folder / f"{name}.html").write_text(exhibit_page(exhibit), encoding="utf-8")
    return folder


def opened(browser, pages, name):
    browser.open(pages / f"{name}.html")
    return browser


@pytest.mark.parametrize("name", ["plan", "cluster", "machine"])
def test_the_page_loads_nothing_and_reports_no_errors(browser, pages, name):
    page = opened(browser, pages, name)
    assert page.run("document.documentElement.classList.contains('js')")
    assert page.requests == []
    assert page.problems == []


def lit(page, phase):
    """The numbers of the highlighted links."""
    numbers = page.run(f"[...document.querySelectorAll('.front .{phase}')].map(e => e.dataset.link)")
    return {int(number) for number in numbers}


def shares(page):
    return page.run("JSON.parse(document.getElementById('data').textContent).shares")


def test_a_click_on_a_tree_highlights_its_links(browser, pages):
    page = opened(browser, pages, "plan")
    known = shares(page)
    for number, share in enumerate(known):
        page.click(f".card:nth-child({number + 1}) .pick")
        assert lit(page, "up") == set(share["up"])
        assert lit(page, "down") == set(share["down"])
        assert page.run("document.querySelectorAll('.front [marker-end]').length") == len(share["up"]) + len(
            share["down"]
        )
        assert share["said"] in page.run("document.getElementById('which').textContent")
    page.click("#up")
    assert lit(page, "up") == set()
    assert lit(page, "down") == set(known[-1]["down"])
    page.click(f".card:nth-child({len(known)}) .pick")  # once more: all again
    assert page.run("document.querySelectorAll('.front path[data-link]').length") == 0
    assert page.problems == []


def test_keys_select_shares(browser, pages):
    page = opened(browser, pages, "plan")
    pressed = "[...document.querySelectorAll('.pick')].map(e => e.getAttribute('aria-pressed'))"
    page.key("ArrowRight")
    assert page.run(pressed) == ["true", "false"]
    page.key("ArrowRight")
    assert page.run(pressed) == ["false", "true"]
    page.key("ArrowRight")
    assert page.run(pressed) == ["true", "false"]
    page.key("Escape")
    assert page.run(pressed) == ["false", "false"]
    page.key("ArrowLeft")
    assert page.run(pressed) == ["false", "true"]


def test_the_bottleneck_can_be_hidden(browser, pages):
    page = opened(browser, pages, "plan")
    shown_style = "getComputedStyle(document.querySelector('#machine .proof')).display"
    assert page.run(shown_style) == "inline"
    page.click("#show-cut")
    assert page.run(shown_style) == "none"


def test_time_can_be_moved_and_played(browser, pages):
    page = opened(browser, pages, "plan")
    page.run("{ const at = document.getElementById('at'); at.value = 120; at.dispatchEvent(new Event('input')); }")
    dots = page.run("document.querySelectorAll('.front .dot').length")
    moves = page.run("JSON.parse(document.getElementById('data').textContent).moves")
    assert dots == sum(begin <= 5000 < end for _, begin, end, *_ in moves) > 0
    shown = page.run("document.getElementById('now').textContent")
    assert shown.endswith(" ms")
    page.click("#play")
    assert page.run("document.getElementById('play').textContent") == "pause"
    moved = "new Promise(done => { const look = () => document.getElementById('now').textContent === '%s'"
    page.run(moved % shown + " ? setTimeout(look, 20) : done(1); look(); })")
    page.click("#play")
    assert page.run("document.getElementById('play').textContent") == "play"
    assert page.problems == []


def test_a_server_is_opened_and_closed(browser, pages):
    page = opened(browser, pages, "cluster")
    box = "document.querySelector('.front').getAttribute('viewBox')"
    display = "getComputedStyle(document.querySelector('#v24').closest('.inside')).display"
    zoom_style = "getComputedStyle(document.querySelector('.closer')).display"
    whole = page.run(box)
    assert page.run(box) == page.run("document.getElementById('machine').getAttribute('viewBox')")
    assert page.run(display) == "none" == page.run(zoom_style)
    page.click("#server3")
    assert page.run("document.querySelector('#v24').closest('svg').classList.contains('closer')")
    assert page.run(display) == "inline"
    assert page.run(box) == page.run("document.querySelector('.closer').getAttribute('viewBox')") != whole
    page.click(".card:nth-child(1) .pick")
    inside = page.run("[...document.querySelectorAll('.closer .way')].map(e => e.id.slice(1))")
    marked = page.run("[...document.querySelectorAll('.front path[data-link]')].map(e => e.dataset.link)")
    assert marked
    assert set(marked) <= set(inside)
    page.click("#whole")
    assert page.run(box) == whole
    assert page.run(display) == "none" == page.run(zoom_style)
    assert page.run("document.querySelector('#v24').closest('.unit').id") == "server3"
    page.run("document.querySelector('#server5 > rect').focus()")
    page.key("Enter")
    assert page.run("document.querySelector('#v40').closest('svg').classList.contains('closer')")
    page.key("Escape")
    assert page.run(box) == whole
    assert page.problems == []


def test_a_step_changes_only_the_necessary_elements(browser, pages):
    """Counts work, not time: changes outside of the marks on the machine do not grow with the cluster."""
    page = opened(browser, pages, "cluster")
    links = page.run("document.querySelectorAll('#machine .way').length")
    page.run("""
        window.touched = 0;
        new MutationObserver(all => all.forEach(one => {
          if (!one.target.closest?.('.front')) touched += 1 + one.addedNodes.length + one.removedNodes.length;
        })).observe(document.body, { subtree: true, childList: true, attributes: true });
    """)

    def work(action):
        page.run("touched = 0")
        page.run(action)
        return page.run("new Promise(done => setTimeout(() => done(touched), 0))")

    assert links > 500
    step = "document.getElementById('next').click()"
    assert 0 < work(step) < 20
    assert 0 < work(step) < 20
    assert 0 < work("document.getElementById('all').click()") < 20
    look = "document.getElementById('server3').dispatchEvent(new MouseEvent('click', { bubbles: true }))"
    assert 0 < work(look) < 40
    assert 0 < work("document.getElementById('whole').click()") < 40


def test_light_and_dark(browser, pages):
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    try:
        browser.dark(True)
        page = opened(browser, pages, "plan")
        dark = page.run(paper)
        page.click("#theme")
        light = page.run(paper)
        assert light == "rgb(255, 255, 255)" != dark
        page.click("#theme")
        assert page.run(paper) == dark
    finally:
        browser.dark(False)


def test_a_phone_needs_no_scrolling_sideways(browser, pages):
    try:
        browser.size(360, 740)
        for name in ("plan", "cluster", "machine"):
            page = opened(browser, pages, name)
            assert page.run("document.documentElement.scrollWidth") <= 360
    finally:
        browser.size(1400, 900)


def test_without_script_the_page_is_a_document(browser, pages):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page = opened(browser, pages, "plan")
        page.call("DOM.enable")
        root = page.call("DOM.getDocument", depth=1)["root"]["nodeId"]
        hidden = page.call("DOM.querySelectorAll", nodeId=root, selector=".js")["nodeIds"]
        assert hidden == []
        cards = page.call("DOM.querySelectorAll", nodeId=root, selector=".card svg")["nodeIds"]
        assert len(cards) == 2
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """axe-core's script: the file named by ``BLINK_AXE``, or the one from npm."""
    named = os.environ.get("BLINK_AXE")
    if named:
        return Path(named).read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no axe-core here: BLINK_AXE names no axe.min.js, and there is no npm to fetch it")
    try:
        subprocess.run([npm, "pack", "--silent", "axe-core@4"], cwd=folder, check=True, capture_output=True, timeout=60)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("axe-core cannot be fetched from here; let BLINK_AXE name its axe.min.js")
    with tarfile.open(next(folder.glob("*.tgz"))) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["plan", "cluster", "machine"])
def test_axe_finds_nothing_serious(browser, pages, axe, name, dark):
    try:
        browser.dark(dark)
        page = opened(browser, pages, name)
        page.run(axe + "; true")
        findings = json.loads(page.run("axe.run().then(findings => JSON.stringify(findings.violations))"))
    finally:
        browser.dark(False)
    reports = [
        f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:4]}"
        for one in findings
        if one["impact"] in SERIOUS
    ]
    assert not reports, "\n".join(reports)
