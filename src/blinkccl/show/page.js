// The page of "blink show": theme, shares on the machine, zoom into servers, time. No library, no request.
// The document has all data: links are groups l0, l1, … of the figure "machine"; "data" has shares and transfers.
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

  // Light or dark: the system's theme, or the reader's choice.
  const themes = ["auto", "light", "dark"];
  let theme = 0;
  on(find("theme"), "click", (event) => {
    theme = (theme + 1) % themes.length;
    if (theme) root.dataset.theme = themes[theme];
    else delete root.dataset.theme;
    event.target.textContent = `theme: ${themes[theme]}`;
  });

  // The machine is drawn once. Changes are drawn on top: the inside of one server, marks, and dots in front of all.
  const home = machine && machine.getAttribute("viewBox");
  const layer = (style) => make("svg", { class: `fig ${style}`, viewBox: home }, machine.parentElement);
  const closer = machine && layer("closer");
  const front = machine && layer("front");
  const [marks, dots] = machine ? [make("g", {}, front), make("g", {}, front)] : [];
  for (const phase of machine ? ["up", "down"] : []) {
    const marker = { id: `tip-${phase}`, viewBox: "0 0 9 9", refX: 9, refY: 4.5, markerWidth: 12, markerHeight: 12,
      markerUnits: "userSpaceOnUse", orient: "auto" };
    make("path", { class: `head-${phase}`, d: "M9 4.5L0 0L0 9Z" }, make("marker", marker, front));
  }
  front?.setAttribute("aria-hidden", "true");

  // One share on the machine, or the load of all shares.
  const cards = all(".card");
  const ways = new Map(); // link -> its line, and the folded server around it
  for (const line of machine ? all(".way:not(.bundle)", machine) : []) {
    ways.set(Number(line.id.slice(1)), { path: line.lastElementChild, unit: line.closest(".unit") });
  }
  const bundles = new Map(); // in a folded cluster: link -> the line that represents it
  for (const bundle of all(".bundle")) {
    for (const link of bundle.dataset.links.split(" ")) bundles.set(Number(link), bundle.querySelector("path"));
  }
  const lines = machine && machine.querySelector(".links");
  let chosen = -1, opened = null;

  function mark(links, phase) { // copies of the visible lines, in the colour of their stage
    const drawn = new Set();
    for (const link of links) {
      const { path, unit } = ways.get(link);
      const seen = unit === opened || !unit ? path : opened ? null : bundles.get(link);
      if (!seen || drawn.has(seen)) continue;
      drawn.add(seen);
      const copy = seen.cloneNode();
      copy.setAttribute("class", phase);
      copy.dataset.link = link;
      if (seen === path) copy.setAttribute("marker-end", `url(#tip-${phase})`);
      marks.append(copy);
    }
  }

  function dim() { // two groups, not thousands of lines
    const moving = slider && slider.value > 0 && Number(slider.value) < steps;
    for (const group of [lines, closer.querySelector(".links")]) group?.classList.toggle("dim", chosen >= 0 || moving);
  }

  function tell() { // announces the share and the server
    const share = chosen < 0 ? "" : `share ${chosen + 1} of ${shares.length}: ${shares[chosen].said}`;
    const server = opened ? opened.querySelector("title").textContent : "";
    find("which").textContent = [server, share].filter(Boolean).join(" · ");
  }

  function choose(number) {
    if (!machine || !shares.length) return;
    for (const i of new Set([chosen, number])) {
      if (i < 0) continue;
      cards[i].classList.toggle("on", i === number);
      cards[i].querySelector(".pick").setAttribute("aria-pressed", String(i === number));
    }
    chosen = number;
    marks.replaceChildren();
    find("all").setAttribute("aria-pressed", String(number < 0));
    tell();
    if (number >= 0 && find("up").checked) mark(shares[number].up, "up");
    if (number >= 0 && find("down").checked) mark(shares[number].down, "down");
    if (slider) show(Number(slider.value));
    else dim();
  }

  const step = (by) => choose(chosen < 0 ? (by > 0 ? 0 : shares.length - 1) : (chosen + by + shares.length) % shares.length);
  cards.forEach((card, i) => on(card, "click", () => choose(chosen === i ? -1 : i)));
  on(find("all"), "click", () => choose(-1));
  on(find("prev"), "click", () => step(-1));
  on(find("next"), "click", () => step(1));
  on(find("up"), "change", () => choose(chosen));
  on(find("down"), "change", () => choose(chosen));

  // The bottleneck.
  const proof = machine && machine.querySelector(".proof");
  if (machine && !proof) find("cut-label")?.remove();
  on(find("show-cut"), "change", (event) => machine.parentElement.classList.toggle("hide-cut", !event.target.checked));

  // A cluster's servers: one is open at a time. Its contents move into a picture that covers the cluster's.
  function open(unit) {
    if (opened) opened.append(closer.querySelector(".inside"));
    opened = unit;
    closer.replaceChildren();
    if (unit) {
      const [x, y, width, height] = ["x", "y", "width", "height"].map((key) => Number(unit.querySelector("rect").getAttribute(key)));
      const margin = height * 0.3;
      closer.setAttribute("viewBox", `${x - margin / 4} ${y - margin} ${width + margin / 2} ${height + margin * 1.1}`);
      for (const rail of railsOver(y)) nearby(rail, x + width / 2);
      make("rect", { class: "server", x, y, width, height, rx: 10 }, closer);
      closer.append(unit.querySelector(".inside"));
      if (proof) closer.append(proof.cloneNode(true));
    }
    front.setAttribute("viewBox", unit ? closer.getAttribute("viewBox") : home);
    find("whole").disabled = !unit;
    if (shares.length) choose(chosen);
    else tell();
  }

  function railsOver(y) { // rails of the row of servers that begins at y
    const top = (rail) => Number(rail.querySelector("rect").getAttribute("y"));
    const above = all(".rail", machine).filter((rail) => top(rail) < y);
    const nearest = Math.max(...above.map(top));
    return above.filter((rail) => top(rail) === nearest);
  }

  function nearby(rail, x) { // as large as a server's contents, with its name above the server
    const copy = closer.appendChild(rail.cloneNode(true));
    const box = copy.querySelector("rect"), words = copy.querySelector("text");
    const middle = Number(box.getAttribute("y")) + box.getAttribute("height") / 2;
    for (const [key, value] of Object.entries({ y: middle - 12, height: 24, "stroke-width": 1 })) box.setAttribute(key, value);
    for (const [key, value] of Object.entries({ x, y: middle + 4, "font-size": 12 })) words?.setAttribute(key, value);
  }

  for (const unit of machine ? all(".unit", machine) : []) {
    const box = unit.querySelector("rect"); // a box without words, so its name need not repeat any
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "button");
    box.setAttribute("aria-label", unit.querySelector("title").textContent);
    on(unit, "click", () => open(unit));
    on(box, "keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(unit); }
    });
  }
  on(find("whole"), "click", () => open(null));

  // Time: dots on links with bytes in transit.
  const slider = find("at");
  const steps = slider ? Number(slider.max) : 1;
  let playing = 0;

  function point(link, part) { // on a line, or on a parabola with its third point in the middle
    const way = ways.get(link);
    way.at = way.at || way.path.getAttribute("d").match(/-?[\d.]+/g).map(Number);
    const [x, y] = way.at, [u, v] = way.at.slice(-2), rest = 1 - part;
    const [p, q] = way.at.length > 4 ? way.at.slice(2, 4) : [(x + u) / 2, (y + v) / 2];
    const on = (a, b, c) => rest * rest * a + 2 * rest * part * b + part * part * c;
    return [on(x, p, u), on(y, q, v)];
  }

  function show(at) { // 0 … steps
    const part = (at / steps) * 10000;
    let used = 0;
    for (const move of at > 0 && at < steps ? moves : []) {
      if (move[1] > part || part >= move[2] || (chosen >= 0 && chosen !== move[0])) continue;
      const hops = move.length - 3, far = ((part - move[1]) / (move[2] - move[1])) * hops;
      const hop = Math.min(hops - 1, Math.floor(far));
      const [x, y] = point(move[3 + hop], far - hop);
      const dot = dots.children[used++] || make("circle", { r: 5.5 }, dots);
      dot.setAttribute("class", `dot s${move[0] % 6}`);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
    }
    while (dots.children.length > used) dots.lastChild.remove();
    dim();
    const now = `${((data.seconds * at) / steps * data.scale).toFixed(data.digits)} ${data.unit}`;
    find("now").textContent = now;
    slider.setAttribute("aria-valuetext", now);
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
      const at = Math.min(steps, first + Math.max(0, now - began) / 33);
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
  }

  // Keys: left and right select shares, space plays, escape returns to all.
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
