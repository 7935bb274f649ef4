/* A chart of lines over a number. It draws itself again when its width changes, and shows the values under the pointer. */

const MARGIN = { left: 56, top: 14, bottom: 34 };

/* Returns ticks from lo to hi, about n of them, at 1, 2 or 5 times a power of ten, or at powers of two if `binary`. */
function ticks(lo, hi, n, binary = false) {
  const rough = (hi - lo) / Math.max(1, n),
    power = 10 ** Math.floor(Math.log10(rough)),
    d = rough / power,
    all = [];
  const step = binary ? 2 ** Math.round(Math.log2(rough)) : power * (d < 1.5 ? 1 : d < 3.5 ? 2 : d < 7.5 ? 5 : 10);
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; i++) all.push(i * step);
  return all;
}

/* The same for a logarithmic axis: powers of ten, with 2 and 5 times them if they are few. */
function logTicks(lo, hi, n) {
  const from = Math.floor(Math.log10(lo)),
    to = Math.ceil(Math.log10(hi)),
    all = [];
  const each = to - from > n ? Math.ceil((to - from) / n) : 1,
    parts = to - from <= n / 3 ? [1, 2, 5] : [1];
  for (let e = from; e <= to; e += each)
    for (const p of parts) all.push(p * 10 ** e);
  const inside = all.filter(v => v >= lo * (1 - 1e-9) && v <= hi * (1 + 1e-9));
  return inside.length > 1 ? inside : ticks(lo, hi, n);
}

/* Returns one point for each pixel of width at least: where a pixel has several, the lowest and the highest one. */
function decimate(points, scale) {
  if (points.length < 3) return points;
  const out = [];
  let column = NaN,
    low = null,
    high = null,
    last = null;
  const flush = () => {
    if (!low) return;
    const pair = low === high ? [low] : low[0] <= high[0] ? [low, high] : [high, low];
    out.push(...pair);
    if (last !== pair[pair.length - 1]) out.push(last);
  };
  for (const p of points) {
    const at = Math.floor(scale(p[0]));
    if (at !== column) flush(), column = at, low = high = null;
    if (!low || p[1] < low[1]) low = p;
    if (!high || p[1] > high[1]) high = p;
    last = p;
  }
  flush();
  return out;
}

function path(points, x, y) {
  let text = "";
  for (const p of decimate(points, x)) text += `${text ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`;
  return text;
}

/* The outline of a band between two lines: points are x, low, high. */
function bandPath(points, x, y) {
  const up = points.map(p => [p[0], p[2]]),
    down = points.map(p => [p[0], p[1]]).reverse();
  if (!up.length) return "";
  return [...up, ...down].map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("") + "Z";
}

/* Moves labels at the right end of lines apart, so that none covers another. They keep their order. */
function spread(labels, lo, hi, height) {
  labels.sort((a, b) => a.y - b.y);
  for (let i = 1; i < labels.length; i++) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + height);
  const over = labels.length ? labels[labels.length - 1].y - hi : 0;
  if (over > 0)
    for (let i = labels.length - 1, most = hi; i >= 0; i--, most -= height) labels[i].y = Math.min(labels[i].y, most);
  for (const l of labels) l.y = Math.max(l.y, lo);
}

/* Makes a chart. options:
 * - series(): the lines now, each {label, color, points: [[x, y]..], dash, faint, dots, band: [[x, low, high]..], quiet}.
 *   quiet: the line has no label and no value under the pointer; unlabeled: it has no label.
 * - height; x, y: functions that write a number as text; tick(v, all): the same for the ticks of y; binary: ticks are
 *   powers of two; marks(): vertical lines, at most two, each {x, text}; xTitle(); log(): whether y is logarithmic; zero: y begins at 0;
 * - range(series): optional, the lowest and the highest y to show.
 * - labels: whether lines have labels at their right ends.
 * Returns an element with a function redraw. */
function chart(options) {
  const box = el("div", { class: "chart" }),
    tip = el("div", { class: "tip", hidden: "" });
  let width = 0;

  function extent(series) {
    let x0 = Infinity,
      x1 = -Infinity,
      y0 = Infinity,
      y1 = -Infinity;
    for (const s of series)
      for (const p of s.points) {
        x0 = Math.min(x0, p[0]), x1 = Math.max(x1, p[0]);
        if (s.faint && options.range) continue;
        y0 = Math.min(y0, p[1]), y1 = Math.max(y1, p[1]);
      }
    if (!(x1 > x0)) x0 = known(x0) ? x0 - 0.5 : 0, x1 = x0 + 1;
    if (options.range)[y0, y1] = options.range(series, y0, y1);
    if (!known(y0)) y0 = 0, y1 = 1;
    if (options.zero) y0 = Math.min(0, y0);
    if (options.log && options.log() && y0 > 0) return { x0, x1, y0: y0 / (y1 / y0) ** 0.04, y1: y1 * (y1 / y0 ||
        1) ** 0.04 * (y1 > y0 ? 1 : 1.1), log: true };
    const room = y1 > y0 ? 0.05 * (y1 - y0) : Math.abs(y1) * 0.1 || 1;
    return { x0, x1, y0: options.zero && y0 === 0 ? 0 : y0 - room, y1: y1 + room, log: false };
  }

  function draw() {
    if (!width) return;
    const series = options.series().filter(s => s.points.length),
      height = options.height || 300,
      e = extent(series);
    const named = options.labels ? series.filter(s => !s.quiet && !s.unlabeled) : [];
    const widest = Math.max(0, ...named.map(s => s.label.length));
    const right = named.length ? Math.min(widest * 7 + 14, width * 0.3) : 12,
      left = MARGIN.left;
    const bottom = height - MARGIN.bottom,
      inner = width - left - right;
    const x = v => left + (v - e.x0) / (e.x1 - e.x0) * inner;
    const y = e.log ? v => MARGIN.top + Math.log(e.y1 / Math.max(v, 1e-300)) / Math.log(e.y1 / e.y0) * (bottom -
        MARGIN.top) :
      v => MARGIN.top + (e.y1 - v) / (e.y1 - e.y0) * (bottom - MARGIN.top);
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.title ||
        "chart" });
    const id = "clip" + Math.random().toString(36).slice(2);
    root.append(svg("clipPath", { id }, svg("rect", { x: left, y: 0, width: inner + 1, height: bottom + 1 })));
    const yTicks = (e.log ? logTicks : ticks)(e.y0, e.y1, Math.max(2, Math.floor((bottom - MARGIN.top) / 46)), options
      .binary);
    for (const v of yTicks) {
      root.append(svg("line", { class: "grid", x1: left, x2: left + inner, y1: y(v), y2: y(v) }));
      root.append(svg("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, (options.tick || options.y)(v,
        yTicks)));
    }
    const xTicks = ticks(e.x0, e.x1, Math.max(2, Math.floor(inner / 90)));
    for (const v of xTicks) root.append(svg("text", { x: x(v), y: bottom + 17, "text-anchor": "middle" }, options.x(
      v)));
    root.append(svg("line", { class: "axis", x1: left, x2: left + inner, y1: bottom, y2: bottom }));
    if (options.xTitle) root.append(svg("text", { x: left + inner, y: height - 2, "text-anchor": "end" }, options
      .xTitle()));
    const lines = svg("g", { "clip-path": `url(#${id})` });
    for (const s of series) {
      if (s.band) lines.append(svg("path", { d: bandPath(s.band, x, y), fill: s.color, opacity: 0.13 }));
      if (s.area) lines.append(svg(
      "path", { d: `${path(s.points, x, y)}L${x(s.points[s.points.length - 1][0])} ${bottom}L${x(s.points[0][0])} ${bottom}Z`,
        fill: s.color, opacity: 0.16 }));
      lines.append(svg("path", { class: "curve", d: path(s.points, x, y), style: `stroke:${s.color}`, opacity: s
            .faint ? 0.28 : 1, "stroke-width": s.faint ? 1 : s.thin ? 1.5 : 2, "stroke-dasharray": s.dash ||
          null }));
      if (s.dots && s.points.length <= inner / 12)
        for (const p of s.points) lines.append(svg("circle", { cx: x(p[0]), cy: y(p[1]), r: 2.6,
          style: `fill:${s.color}` }));
    }
    root.append(lines);
    const labels = named.map(s => ({ s, y: y(s.points[s.points.length - 1][1]) }));
    spread(labels, MARGIN.top + 4, bottom - 2, 15);
    for (const l of labels) {
      const most = Math.max(3, Math.floor((right - 12) / 7)),
        text = l.s.label.length > most ? l.s.label.slice(0, most - 1) + "\u2026" : l.s.label;
      root.append(svg("text", { class: "label", x: left + inner + 8, y: l.y + 4, style: `fill:${l.s.color}` }, text));
    }
    const marks = options.marks ? options.marks().sort((a, b) => a.x - b.x) : [];
    marks.forEach((m, i) => {
      /* texts lie to the left of the first mark, and to the right of the second */
      const left = i === 0 && x(m.x) > MARGIN.left + 80;
      root.append(svg("line", { class: "cursor", x1: x(m.x), x2: x(m.x), y1: 0, y2: bottom }));
      const close = i > 0 && x(m.x) - x(marks[0].x) < 110 && x(marks[0].x) <= MARGIN.left + 80;
      root.append(svg("text", { x: x(m.x) + (left ? -6 : 6), y: close ? 24 : 9, "text-anchor": left ? "end" :
          "start" }, m.text));
    });
    const cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" }),
      points = svg("g");
    root.append(cursor, points);
    root.addEventListener("pointermove", event => point(event, series, { x, y, e, left, inner, cursor, points }));
    root.addEventListener("pointerleave", () => hide(cursor, points));
    box.replaceChildren(root, tip);
  }

  function hide(cursor, points) {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
    points.replaceChildren();
  }

  /* Shows the values of the lines at the pointer. */
  function point(event, series, at) {
    const where = event.clientX - box.getBoundingClientRect().left;
    if (where < at.left - 4 || where > at.left + at.inner + 4) return hide(at.cursor, at.points);
    const v = at.e.x0 + (where - at.left) / at.inner * (at.e.x1 - at.e.x0);
    const found = series.filter(s => !s.quiet).map(s => ({ s, p: nearest(s.points, v) })).filter(f => f.p);
    if (!found.length) return hide(at.cursor, at.points);
    const main = found.reduce((a, b) => Math.abs(b.p[0] - v) < Math.abs(a.p[0] - v) ? b : a).p[0];
    at.cursor.setAttribute("x1", at.x(main));
    at.cursor.setAttribute("x2", at.x(main));
    at.cursor.setAttribute("visibility", "visible");
    at.points.replaceChildren(...found.map(f => svg("circle", { cx: at.x(f.p[0]), cy: at.y(f.p[1]), r: 3.5,
      style: `fill:${f.s.color};stroke:var(--card)` })));
    const rows = found.map(f => el("div", { class: "row" }, el("i", { class: "key",
        style: `border-color:${f.s.color}${f.s.dash ? ";border-top-style:dashed" : ""}` }),
      el("span", {}, f.s.label || options.title), el("span", {}, (options.value || options.y)(f.p[1], f.p))));
    tip.replaceChildren(el("b", {}, (options.tipTitle || options.x)(main)), ...rows, ...(options.more ? options.more(
      main) : []));
    tip.hidden = false;
    const half = at.left + at.inner / 2,
      room = 14;
    const x = at.x(main);
    tip.style.left = x < half ? `${Math.min(x + room, width - tip.offsetWidth)}px` :
      `${Math.max(0, x - room - tip.offsetWidth)}px`;
    tip.style.top = `${MARGIN.top + 6}px`;
  }

  onWidth(box, w => (width = w, draw()));
  box.redraw = draw;
  return box;
}

/* Returns the point whose x is nearest to v; null if v is far outside of the line. */
function nearest(points, v) {
  let lo = 0,
    hi = points.length - 1;
  if (hi < 0) return null;
  while (hi - lo > 1) {
    const mid = (lo + hi) >> 1;
    if (points[mid][0] < v) lo = mid;
    else hi = mid;
  }
  return Math.abs(points[lo][0] - v) <= Math.abs(points[hi][0] - v) ? points[lo] : points[hi];
}
