"""Frame times of pages of ``blink show`` in a headless Chromium, from its own trace.

    blink show plan.json -o plan.html; python benchmarks/frames.py plan.html ...

For each action of a reader it prints the number of frames, the number of slow ones, and the worst, by kind. A frame is
slow with more than 20 ms of processor time on the page's main thread. Load of other processes does not count.
Raster does not count either: it has its own threads and, if present, a GPU.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.browser import Browser, browser_path

#: Events of the main thread, by kind. An event inside another counts with it, if it has no kind itself.
KINDS = {
    **dict.fromkeys(("FunctionCall", "EvaluateScript", "FireAnimationFrame", "EventDispatch"), "script"),
    **dict.fromkeys(("UpdateLayoutTree", "ParseAuthorStyleSheet"), "style"),
    **dict.fromkeys(("Layout", "HitTest"), "layout"),
    **dict.fromkeys(("PrePaint", "Paint", "Layerize", "Commit"), "paint"),
}
CATEGORIES = ("devtools.timeline", "disabled-by-default-devtools.timeline.frame", "toplevel", "blink")
#: Microseconds of a frame at 50 frames per second.
SLOW_US = 20_000
_FRAME = "await new Promise(done => requestAnimationFrame(() => setTimeout(done, 30)));"
_CLICK = "document.querySelector('%s').dispatchEvent(new MouseEvent('click', { bubbles: true }));" + _FRAME
_SCRUB = "const at = document.getElementById('at'); for (let i = 0; i < 60; i++) { at.value = 4 * i;"
_SCRUB += "at.dispatchEvent(new Event('input')); await new Promise(requestAnimationFrame); }"
_OPEN = "for (const one of document.querySelectorAll('details')) { one.scrollIntoView();" + _FRAME
_OPEN += "one.open = true;" + _FRAME + "}"
#: Action, the element of the page that it needs, and the script.
ACTIONS = (
    ("playing, 2 s", "#play", _CLICK % "#play" + "await new Promise(done => setTimeout(done, 2000));"),
    ("moving through time", "#play", _CLICK % "#play" + _SCRUB),
    ("10 steps through trees", "#next", "for (let i = 0; i < 10; i++) {" + _CLICK % "#next" + "}"),
    ("all trees again", "#next", _CLICK % "#all"),
    ("into a server", "#server3.unit", _CLICK % "#server3"),
    ("into another", "#server7.unit", _CLICK % "#server7"),
    ("10 steps in there", ".unit", "for (let i = 0; i < 10; i++) {" + _CLICK % "#next" + "}"),
    ("out of it", ".unit", _CLICK % "#whole"),
    ("opening tables", "details", _OPEN),
    ("another theme, twice", "body", 2 * (_CLICK % "#theme")),
)


def frames(events: list[dict[str, Any]]) -> list[Counter[str]]:
    """Microseconds of processor time of the page's main thread before each frame, by kind."""
    acted = next(e for e in events if e["name"] in ("EventDispatch", "FunctionCall", "EvaluateScript"))
    main = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (acted["pid"], acted["tid"])]
    main.sort(key=lambda e: (e["ts"], -e.get("dur", 0)))
    drawn = sorted(e["ts"] for e in events if e["name"] == "DrawFrame" and e["pid"] == acted["pid"])
    totals = [Counter[str]() for _ in range(len(drawn) + 1)]
    around: list[tuple[float, str]] = []
    for event in main:
        begin, spent = event["ts"], event.get("tdur", 0)
        while around and around[-1][0] <= begin:
            around.pop()
        outer = around[-1][1] if around else ""
        kind = KINDS.get(event["name"], outer or "other")
        frame = totals[bisect_left(drawn, begin)]
        frame[kind] += spent
        if outer:
            frame[outer] -= spent
        around.append((begin + event.get("dur", 0), kind))
    return totals


def tell(name: str, totals: list[Counter[str]]) -> None:
    """Print one line."""
    worst = max(totals, key=lambda frame: frame.total())
    kinds = "  ".join(f"{kind} {worst[kind] / 1000:5.1f}" for kind in ("script", "style", "layout", "paint", "other"))
    slow = sum(frame.total() > SLOW_US for frame in totals)
    print(
        f"  {name:24} {len(totals):4} frames {slow:3} slow   worst {worst.total() / 1000:6.1f} ms:  {kinds}", flush=True
    )


def main(paths: list[str]) -> None:
    """Measure all actions on all pages."""
    browser = browser_path()
    if browser is None or not paths:
        sys.exit("frames.py PAGE.html ...: needs pages of blink show, and Chromium")
    with TemporaryDirectory() as folder, Browser(browser, Path(folder)) as page:
        page.size(1280, 900)
        for path in paths:
            print(path)
            page.open(Path(path))
            time.sleep(1)
            for name, needed, script in ACTIONS:
                if page.run(f"!!document.querySelector('{needed}')"):
                    todo = f"(async () => {{ {script} }})()"
                    tell(name, frames(page.traced(lambda todo=todo: page.run(todo), CATEGORIES)))


if __name__ == "__main__":
    main(sys.argv[1:])
