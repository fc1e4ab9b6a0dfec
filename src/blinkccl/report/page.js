// The page of "blink show": theme, shares on the machine, servers to look into, time, tables. No library, no request.
// All it needs is in the document: links are groups l0, l1, … of the figure "machine"; "data" has shares and moves.
"use strict";
(() => {
  const root = document.documentElement;
  const find = (name) => document.getElementById(name);
  const all = (query, from = document) => [...from.querySelectorAll(query)];
  const on = (element, event, action) => element && element.addEventListener(event, action);
  const data = JSON.parse(find("data").textContent);
  const shares = data.shares || [];
  const moves = data.moves || [];
  const machine = find("machine");
  const svgns = "http://www.w3.org/2000/svg";
  root.classList.add("js");

  function make(name, attributes, parent) {
    const element = document.createElementNS(svgns, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  }

  // Light or dark: as the system is, or as was clicked.
  const themes = ["auto", "light", "dark"];
  let theme = 0;
  on(find("theme"), "click", (event) => {
    theme = (theme + 1) % themes.length;
    if (theme) root.dataset.theme = themes[theme];
    else delete root.dataset.theme;
    event.target.textContent = `theme: ${themes[theme]}`;
  });

  // One share on the machine, or all of them as load.
  const cards = all(".card");
  const ways = new Map(); // link -> its line, and the folded server that it is in
  for (const line of machine ? all(".way:not(.bundle)", machine) : []) {
    ways.set(Number(line.id.slice(1)), { line, unit: line.closest(".unit") });
  }
  const bundles = new Map(); // of a folded cluster: link -> the line that stands for it
  for (const bundle of all(".bundle")) {
    for (const link of bundle.dataset.links.split(" ")) bundles.set(Number(link), bundle);
  }
  const heads = machine && make("g", { class: "heads" }, machine);
  let chosen = -1, opened = null, marked = [];

  function unmark() {
    for (const way of marked) way.classList.remove("on", "up", "down");
    marked = [];
    heads.replaceChildren();
  }

  function arrow(path, phase) {
    const length = path.getTotalLength();
    const tip = path.getPointAtLength(length);
    const before = path.getPointAtLength(Math.max(0, length - 9));
    const far = Math.hypot(tip.x - before.x, tip.y - before.y) || 1;
    const x = ((tip.x - before.x) / far) * 9, y = ((tip.y - before.y) / far) * 9;
    const points = `${tip.x},${tip.y} ${tip.x - x - y / 2},${tip.y - y + x / 2} ${tip.x - x + y / 2},${tip.y - y - x / 2}`;
    make("polygon", { points, class: `head-${phase}` }, heads);
  }

  function mark(links, phase) { // what is hidden in a folded server is left alone: there are thousands
    const lines = new Set();
    for (const link of links) {
      const way = ways.get(link);
      if (!way.unit || way.unit === opened) {
        lines.add(way.line);
        arrow(way.line.querySelector("path"), phase);
      }
      if (bundles.has(link)) lines.add(bundles.get(link));
    }
    for (const line of lines) line.classList.add("on", phase);
    marked.push(...lines);
  }

  function choose(number) {
    if (!machine || !shares.length) return;
    chosen = number;
    unmark();
    machine.classList.toggle("dim", number >= 0);
    cards.forEach((card, i) => {
      card.classList.toggle("on", i === number);
      card.querySelector(".pick").setAttribute("aria-pressed", String(i === number));
    });
    find("all").setAttribute("aria-pressed", String(number < 0));
    find("which").textContent = number < 0 ? "" : `share ${number + 1} of ${shares.length}: ${shares[number].said}`;
    if (number < 0) return;
    if (find("up").checked) mark(shares[number].up, "up");
    if (find("down").checked) mark(shares[number].down, "down");
    if (dots) show(Number(slider.value));
  }

  const step = (by) => choose(chosen < 0 ? (by > 0 ? 0 : shares.length - 1) : (chosen + by + shares.length) % shares.length);
  cards.forEach((card, i) => on(card, "click", () => choose(chosen === i ? -1 : i)));
  on(find("all"), "click", () => choose(-1));
  on(find("prev"), "click", () => step(-1));
  on(find("next"), "click", () => step(1));
  on(find("up"), "change", () => choose(chosen));
  on(find("down"), "change", () => choose(chosen));

  // The bottleneck.
  if (machine && !machine.querySelector(".proof")) find("cut-label")?.remove();
  on(find("show-cut"), "change", (event) => machine.classList.toggle("hide-cut", !event.target.checked));

  // A cluster's servers: one is looked into at a time.
  const units = machine ? all(".unit", machine) : [];
  const home = machine && machine.getAttribute("viewBox");
  function open(unit) {
    if (opened) opened.classList.remove("open");
    if (unit) unit.classList.add("open");
    opened = unit;
    const box = unit && unit.querySelector("rect");
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => box && Number(box.getAttribute(name)));
    const margin = height * 0.3;
    machine.setAttribute("viewBox", box
      ? `${x - margin / 4} ${y - margin} ${width + margin / 2} ${height + margin * 1.1}` : home);
    find("whole").disabled = !unit;
    choose(chosen);
  }
  for (const unit of units) {
    const box = unit.querySelector("rect"); // it has no words of its own that a name would have to repeat
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "button");
    box.setAttribute("aria-label", unit.querySelector("title").textContent);
    on(unit, "click", () => open(unit));
    on(box, "keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(unit); }
    });
  }
  on(find("whole"), "click", () => open(null));

  // Time: dots on links where bytes are under way, and a line through the timeline.
  const slider = find("at"), time = find("time");
  const steps = slider ? Number(slider.max) : 1;
  let dots = null, cursor = null, playing = 0;
  const lengths = new Map();

  function way(link) {
    if (!lengths.has(link)) {
      const path = ways.get(link).line.querySelector("path");
      lengths.set(link, { path, length: path.getTotalLength() });
    }
    return lengths.get(link);
  }

  function show(at) { // 0 … steps
    const part = (at / steps) * 10000;
    dots = dots || make("g", {}, machine);
    dots.replaceChildren();
    if (at > 0 && at < steps) {
      for (const [share, begin, end, ...links] of moves) {
        if (begin > part || part >= end || (chosen >= 0 && chosen !== share)) continue;
        let far = ((part - begin) / (end - begin)) * links.length;
        const { path, length } = way(links[Math.min(links.length - 1, Math.floor(far))]);
        far -= Math.min(links.length - 1, Math.floor(far));
        const point = path.getPointAtLength(length * far);
        make("circle", { cx: point.x, cy: point.y, r: 5.5, class: `dot s${share % 6}` }, dots);
      }
    }
    const { left, right, top, bottom } = time.dataset;
    const x = Number(left) + ((Number(right) - Number(left)) * at) / steps;
    cursor = cursor || make("line", { class: "cursor" }, time);
    for (const [key, value] of Object.entries({ x1: x, x2: x, y1: top, y2: bottom })) cursor.setAttribute(key, value);
    machine.classList.toggle("dim", chosen >= 0 || (at > 0 && at < steps));
    find("now").textContent = `${((data.seconds * at) / steps * data.scale).toFixed(data.digits)} ${data.unit}`;
    slider.setAttribute("aria-valuetext", find("now").textContent);
  }

  function stop() {
    cancelAnimationFrame(playing);
    playing = 0;
    find("play").textContent = "play";
  }

  function play() {
    if (playing) return stop();
    const first = Number(slider.value) >= steps ? 0 : Number(slider.value);
    const began = performance.now();
    find("play").textContent = "pause";
    const frame = (now) => {
      const at = Math.min(steps, first + Math.floor((now - began) / 33));
      slider.value = at;
      show(at);
      if (at >= steps) stop();
      else playing = requestAnimationFrame(frame);
    };
    playing = requestAnimationFrame(frame);
  }
  if (slider) {
    on(slider, "input", () => { stop(); show(Number(slider.value)); });
    on(find("play"), "click", play);
    on(time.ownerSVGElement, "click", (event) => {
      const matrix = time.ownerSVGElement.getScreenCTM();
      const x = (event.clientX - matrix.e) / matrix.a;
      const { left, right } = time.dataset;
      slider.value = Math.round(((x - left) / (right - left)) * steps);
      stop();
      show(Number(slider.value));
    });
  }

  // Tables sort by a click on a column: by number where all cells are numbers, else by letters.
  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    all("th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      on(button, "click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of all("th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].textContent;
        const numeric = head.classList.contains("n");
        const rows = [...body.rows].sort((a, b) => (numeric ? number(key(a)) - number(key(b)) : key(a).localeCompare(key(b), "en", { numeric: true })));
        body.append(...(down ? rows.reverse() : rows));
      });
    });
  }

  function number(text) { // "1/2", "12.5 GB/s", "64M", "1.2 ms", "-"
    const found = text.replaceAll(",", "").match(/^(-?[\d.]+)(?:\/(\d+))?\s*([a-zA-Zµ%]*)/);
    if (!found) return -Infinity;
    const size = { K: 2 ** 10, M: 2 ** 20, G: 2 ** 30, T: 2 ** 40, µs: 1e-6, ms: 1e-3 }[found[3]] || 1;
    return (Number(found[1]) / Number(found[2] || 1)) * size;
  }

  // Keys: left and right go through shares, space plays, escape goes back to all.
  on(document, "keydown", (event) => {
    if (event.target.closest("input,button,[role=button],[role=region]") && event.key !== "Escape") return;
    if (event.key === "ArrowRight" && shares.length) step(1);
    else if (event.key === "ArrowLeft" && shares.length) step(-1);
    else if (event.key === " " && slider) play();
    else if (event.key === "Escape") { if (opened) open(null); else choose(-1); }
    else return;
    event.preventDefault();
  });
})();
