/* A chart of curves. It is drawn again when its width changes, and shows the values under the pointer. */

const MARGIN = {left: 56, top: 14, bottom: 34};

/* ---- The frame of a chart: its range, its place in the element, and the two scales ---- */

/* Returns the range of x and y that the lines cover, with some room. */
function chartRange(options, series) {
  const r = {x0: Infinity, x1: -Infinity, y0: Infinity, y1: -Infinity};
  for (const s of series) {
    for (const [x, y] of s.points) {
      r.x0 = Math.min(r.x0, x);
      r.x1 = Math.max(r.x1, x);
      if (s.faint && options.range) continue;
      r.y0 = Math.min(r.y0, y);
      r.y1 = Math.max(r.y1, y);
    }
  }
  if (!known(r.x0)) r.x0 = 0;
  if (!(r.x1 > r.x0)) [r.x0, r.x1] = [r.x0 - 0.5, r.x0 + 0.5];
  if (options.range) [r.y0, r.y1] = options.range(series);
  if (!known(r.y0)) [r.y0, r.y1] = [0, 1];
  return withRoom(r, Boolean(options.log && options.log() && r.y0 > 0), options.zero);
}

/* Adds room above and below, but not below 0 if the axis begins there. */
function withRoom(r, log, zero) {
  if (log) {
    const room = r.y1 > r.y0 ? (r.y1 / r.y0) ** 0.04 : 1.1;
    return {...r, y0: r.y0 / room, y1: r.y1 * room, log};
  }
  const lo = zero ? Math.min(0, r.y0) : r.y0;
  const room = r.y1 > lo ? 0.05 * (r.y1 - lo) : Math.abs(r.y1) * 0.1 || 1;
  return {...r, y0: zero && lo === 0 ? 0 : lo - room, y1: r.y1 + room, log};
}

/* The width that labels at the right end of lines need; a character has about seven pixels. */
function labelWidth(series, width) {
  const longest = Math.max(0, ...series.map(s => s.label.length));
  return longest ? Math.min(longest * 7 + 14, width * 0.3) : 12;
}

function chartFrame(options, series, width) {
  const height = options.height || 300, range = chartRange(options, series);
  const named = options.labels ? series.filter(s => !s.quiet && !s.unlabeled) : [];
  const right = labelWidth(named, width), left = MARGIN.left, bottom = height - MARGIN.bottom;
  const inner = width - left - right, tall = bottom - MARGIN.top;
  const x = v => left + (v - range.x0) / (range.x1 - range.x0) * inner;
  const share = range.log
    ? v => Math.log(range.y1 / Math.max(v, 1e-300)) / Math.log(range.y1 / range.y0)
    : v => (range.y1 - v) / (range.y1 - range.y0);
  const y = v => MARGIN.top + share(v) * tall;
  return {options, series, named, width, height, range, left, right, bottom, inner, tall, x, y};
}

/* ---- Its parts ---- */

function drawAxes(root, f) {
  const o = f.options, r = f.range, end = f.left + f.inner;
  const yTicks = (r.log ? logTicks : ticks)(r.y0, r.y1, Math.max(2, Math.floor(f.tall / 46)), o.binary);
  for (const v of yTicks) {
    root.append(svg("line", {class: "grid", x1: f.left, x2: end, y1: f.y(v), y2: f.y(v)}));
    root.append(svg("text", {x: f.left - 8, y: f.y(v) + 4, "text-anchor": "end"}, (o.tick || o.y)(v, yTicks)));
  }
  for (const v of ticks(r.x0, r.x1, Math.max(2, Math.floor(f.inner / 90)))) {
    root.append(svg("text", {x: f.x(v), y: f.bottom + 17, "text-anchor": "middle"}, o.x(v)));
  }
  root.append(svg("line", {class: "axis", x1: f.left, x2: end, y1: f.bottom, y2: f.bottom}));
  if (o.xTitle) root.append(svg("text", {x: end, y: f.height - 2, "text-anchor": "end"}, o.xTitle()));
}

function drawSeries(group, f, s) {
  const d = path(s.points, f.x, f.y), fill = `fill:${s.color}`;
  if (s.band) group.append(svg("path", {d: bandPath(s.band, f.x, f.y), style: fill, opacity: 0.13}));
  if (s.area) {
    const first = f.x(s.points[0][0]), last = f.x(s.points[s.points.length - 1][0]);
    group.append(svg("path", {d: `${d}L${last} ${f.bottom}L${first} ${f.bottom}Z`, style: fill, opacity: 0.16}));
  }
  group.append(svg("path", {
    class: "curve", d, style: `stroke:${s.color}`, opacity: s.faint ? 0.28 : null,
    "stroke-width": s.faint ? 1 : s.thin ? 1.5 : 2, "stroke-dasharray": s.dash,
  }));
  if (!s.dots || s.points.length > f.inner / 12) return;
  for (const p of s.points) group.append(svg("circle", {cx: f.x(p[0]), cy: f.y(p[1]), r: 2.6, style: fill}));
}

/* Draws the lines, which must not leave the area between the axes. */
function drawLines(root, f) {
  const id = `area${chartNumber++}`, group = svg("g", {"clip-path": `url(#${id})`});
  const area = svg("rect", {x: f.left, y: 0, width: f.inner + 1, height: f.bottom + 1});
  root.append(svg("clipPath", {id}, area), group);
  for (const s of f.series) drawSeries(group, f, s);
}

let chartNumber = 0;

function drawLabels(root, f) {
  const most = Math.max(3, Math.floor((f.right - 12) / 7));
  const labels = f.named.map(s => {
    const end = s.points[s.points.length - 1];
    return {s, x: f.x(end[0]) + 8, y: f.y(end[1])};
  });
  spread(labels, MARGIN.top + 4, f.bottom - 2, 15);
  for (const {s, x, y} of labels) {
    const text = s.label.length > most ? `${s.label.slice(0, most - 1)}\u2026` : s.label;
    root.append(svg("text", {class: "label", x, y: y + 4, style: `fill:${s.color}`}, text));
  }
}

/* Draws at most two vertical lines. The text of the first lies on its left, if there is room, and that of the second on
 * its right, or below the other one. */
function drawMarks(root, f, marks) {
  const first = marks[0], room = first && f.x(first.x) > f.left + 110;
  marks.forEach((m, i) => {
    const x = f.x(m.x), before = i === 0 && room, below = i > 0 && !room && x - f.x(first.x) < 120;
    root.append(svg("line", {class: "cursor", x1: x, x2: x, y1: 0, y2: f.bottom}));
    const at = {x: x + (before ? -6 : 6), y: below ? 24 : 9, "text-anchor": before ? "end" : "start"};
    root.append(svg("text", at, m.text));
  });
}

/* ---- The values under the pointer ---- */

function tipRow(options, s, p) {
  const dashed = s.dash ? ";border-top-style:dashed" : "";
  return el("div", {class: "row"}, el("i", {class: "key", style: `border-color:${s.color}${dashed}`}),
    el("span", {}, s.label || options.title), el("span", {}, options.y(p[1])));
}

/* Lets the pointer show the values of the lines at its place in the element `tip`. */
function followPointer(root, f, tip) {
  const cursor = svg("line", {class: "cursor", y1: MARGIN.top, y2: f.bottom, visibility: "hidden"}), dots = svg("g");
  root.append(cursor, dots);

  function hide() {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
    dots.replaceChildren();
  }

  function show(at, found) {
    const x = f.x(at), room = 14, rows = found.map(({s, p}) => tipRow(f.options, s, p));
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, x);
    cursor.setAttribute("visibility", "visible");
    dots.replaceChildren(...found.map(({s, p}) =>
      svg("circle", {cx: f.x(p[0]), cy: f.y(p[1]), r: 3.5, style: `fill:${s.color};stroke:var(--card)`})));
    tip.replaceChildren(el("b", {}, (f.options.tipTitle || f.options.x)(at)), ...rows,
      ...(f.options.more ? f.options.more(at) : []));
    tip.hidden = false;
    const onRight = x < f.left + f.inner / 2, most = f.width - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(most, onRight ? x + room : x - room - tip.offsetWidth))}px`;
    tip.style.top = `${MARGIN.top + 6}px`;
  }

  root.addEventListener("pointerleave", hide);
  root.addEventListener("pointermove", event => {
    const where = event.clientX - root.getBoundingClientRect().left;
    if (where < f.left - 4 || where > f.left + f.inner + 4) return hide();
    const v = f.range.x0 + (where - f.left) / f.inner * (f.range.x1 - f.range.x0);
    const found = f.series.filter(s => !s.quiet).map(s => ({s, p: nearest(s.points, v)}));
    if (!found.length) return hide();
    const distance = ({p}) => Math.abs(p[0] - v);
    show(found.reduce((a, b) => (distance(b) < distance(a) ? b : a)).p[0], found);
  });
}

/* Makes a chart. options:
 * - series(): the lines now, each {label, color, points: [[x, y]..]}, and optionally band: [[x, low, high]..], dash,
 *   dots, area, thin, faint, quiet (neither a label nor a value under the pointer) and unlabeled;
 * - height; title; x, y: functions that write a number as text; tick(v, all): the same for the ticks of y; binary:
 *   ticks are powers of two; xTitle(); tipTitle(x) and more(x): the first line and further lines under the pointer;
 * - log(): whether y is logarithmic; zero: y begins at 0; range(series): the lowest and the highest y to show;
 * - labels: whether lines have labels at their right ends; marks(): vertical lines, at most two, each {x, text}.
 * Returns an element with a function redraw. */
function chart(options) {
  const box = el("div", {class: "chart"}), tip = el("div", {class: "tip", hidden: ""});
  let width = 0;

  function draw() {
    if (!width) return;
    const f = chartFrame(options, options.series().filter(s => s.points.length), width);
    const root = svg("svg", {
      height: f.height, viewBox: `0 0 ${width} ${f.height}`, role: "img", "aria-label": options.title,
    });
    drawAxes(root, f);
    drawLines(root, f);
    drawLabels(root, f);
    drawMarks(root, f, options.marks ? options.marks().sort((a, b) => a.x - b.x) : []);
    followPointer(root, f, tip);
    box.replaceChildren(root, tip);
  }

  onWidth(box, w => {
    width = w;
    draw();
  });
  box.redraw = draw;
  return box;
}
