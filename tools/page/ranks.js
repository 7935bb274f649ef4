/* What the ranks did during a step: a row for each with its ops and collectives over time, and a table of collectives. */

/* Joins neighboring spans of the same kind, so that a row has few elements. Spans are [begin, end], sorted. */
function joinSpans(spans, gap) {
  const out = [];
  for (const s of spans) {
    const last = out[out.length - 1];
    if (last && s[0] - last[1] <= gap) last[1] = Math.max(last[1], s[1]);
    else out.push([s[0], s[1]]);
  }
  return out;
}

function ranksChart(step) {
  const box = el("div", { class: "chart" }),
    LANES = 30,
    ranks = step.ranks;
  const start = Math.min(...ranks.map(r => r.began)),
    shift = r => r.began - start > 60 ? 0 : (r.began - start) * 1e6;
  const end = Math.max(...ranks.map(r => shift(r) + r.seconds * 1e6));
  onWidth(box, width => {
    const left = 62,
      inner = width - left - 14,
      height = ranks.length * LANES + 34,
      x = v => left + v / end * inner,
      pixel = end / inner;
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}`,
    role: "img", "aria-label": "ranks over time" });
    for (const v of ticks(0, end / 1e6, Math.max(2, Math.floor(inner / 100)))) root.append(
      svg("line", { class: "grid", x1: x(v * 1e6), x2: x(v * 1e6), y1: 0, y2: height - 30 }),
      svg("text", { x: x(v * 1e6), y: height - 12, "text-anchor": "middle" }, duration(v)));
    ranks.forEach((r, i) => {
      const y = i * LANES + 4,
        spans = (list, gap) => joinSpans(list.map(o => [shift(r) + o.t, shift(r) + o.t + o.d]).sort((a, b) =>
          a[0] - b[0]), gap);
      const draw = (list, c, top, h, name) => list.forEach(s => root.append(svg("rect", { x: x(s[0]), y: y +
          top, width: Math.max(1, x(s[1]) - x(s[0])), height: h, rx: 1.5, style: `fill:${c}` }, svg(
        "title", {}, `rank ${r.rank}, ${name}: ${duration((s[1] - s[0]) / 1e6)}`))));
      root.append(svg("text", { x: left - 10, y: y + 15, "text-anchor": "end" }, `rank ${r.rank}`));
      draw(spans(r.ops.filter(o => !o.b), pixel), color(0), 0, 13, "forward");
      draw(spans(r.ops.filter(o => o.b), pixel), color(1), 0, 13, "backward");
      draw(spans(r.collectives, pixel / 2), color(2), 15, 6, "collectives");
    });
    box.replaceChildren(root);
  });
  return box;
}

function collectivesTable(step) {
  const all = new Map();
  for (const r of step.ranks)
    for (const c of r.collectives) {
      const key = `${c.kind} ${c.group} ${c.dtype}`;
      if (!all.has(key)) all.set(key, { kind: c.kind, group: c.group || "all", dtype: c.dtype, calls: 0, count: 0,
        time: 0, longest: 0 });
      const row = all.get(key);
      row.calls++, row.count += c.count, row.time += c.d, row.longest = Math.max(row.longest, c.d);
    }
  const n = step.ranks.length,
    rows = [...all.values()].sort((a, b) => b.time - a.time);
  const head = ["collective", "group", "dtype", "calls a rank", "elements a rank", "time a rank", "longest"];
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head.map((h, i) => el(
    "th", { class: i > 2 ? "number" : "" }, h)))),
    el("tbody", {}, ...rows.map(r => el("tr", {}, el("td", {}, r.kind), el("td", {}, r.group), el("td", {}, r
        .dtype),
      ...[short(r.calls / n), count(r.count / n), duration(r.time / n / 1e6), duration(r.longest / 1e6)].map(
        t => el("td", { class: "number" }, t)))))));
}

/* How often each placement occurs among the results of rank 0. */
function placementsTable(step) {
  const all = new Map();
  for (const op of step.ranks[0].ops) {
    if (!op.p) continue;
    if (!all.has(op.p)) all.set(op.p, { n: 0, ops: new Set() });
    const row = all.get(op.p);
    row.n++, row.ops.add(op.n);
  }
  if (!all.size) return null;
  return el("div", { class: "scroll", style: "margin-top:14px" }, el("table", {}, el("thead", {}, el("tr", {}, el(
      "th", {}, "placement"), el("th", { class: "number" }, "results"), el("th", {}, "of ops"))),
    el("tbody", {}, ...[...all].sort((a, b) => b[1].n - a[1].n).map(([p, r]) => el("tr", {}, el(
    "td", { class: "mono" }, p), el("td", { class: "number" }, r.n), el("td", { class: "dim" }, [...r.ops]
      .join(", ")))))));
}

function ranksCard(step) {
  if (step.ranks.length < 2) return null;
  const legend = el("div", { class: "legend" }, ...["forward", "backward", "collectives"].map((t, i) => el("span", {},
    el("i", { style: `background:${color(i)}` }), t)));
  return card("Ranks", "What each rank did over the step. A collective's time includes the wait for other ranks.",
    null, legend, ranksChart(step), collectivesTable(step), placementsTable(step));
}
