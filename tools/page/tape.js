/* The tape as a list of ops in the order in which they ran, with the graph on its left: a line leads from each op to those
 * that read its result. Only the rows that can be seen are in the page, so a tape may have any length. */

const ROW = 26,
  LANE = 11,
  MOST_LANES = 14;

/* Joins the forward and the backward of each op to one row. */
function tapeRows(rank) {
  const rows = [],
    byNumber = new Map();
  for (const op of rank.ops) {
    if (!op.b) {
      const row = { name: op.n, number: op.i, inputs: op.in || [], out: op.o || "", placement: op.p || "",
        site: place(rank.sites[op.s]), forward: op.d, backward: null, flops: 0, saved: 0, readers: [] };
      byNumber.set(op.i, row);
      rows.push(row);
    } else {
      const row = byNumber.get(op.i);
      if (row) row.backward = (row.backward || 0) + op.d, row.flops = op.f || 0, row.saved = op.sv || 0;
    }
  }
  rows.forEach((row, i) => (row.index = i));
  for (const row of rows)
    for (const from of new Set(row.inputs.filter(known)))
      if (byNumber.has(from)) byNumber.get(from).readers.push(row.index);
  return rows;
}

/* Gives each op a lane that is free from it to its last reader. Sets row.lane and row.last; returns the number of lanes. */
function layLanes(rows) {
  const until = [];
  for (const row of rows) {
    row.last = row.readers.length ? row.readers[row.readers.length - 1] : row.index;
    let lane = until.findIndex(end => end <= row.index);
    if (lane < 0) lane = until.length;
    until[lane] = row.last;
    row.lane = lane;
  }
  return until.length;
}

function laneX(lane) {
  return 12 + Math.min(lane, MOST_LANES - 1) * LANE;
}

/* Draws the part of the graph in rows from..to. */
function drawLanes(rows, spans, from, to, width) {
  const g = svg("svg", { width, height: (to - from) * ROW, style: `top:${from * ROW}px` }),
    y = i => (i - from + 0.5) * ROW;
  const lines = svg("g"),
    dots = svg("g");
  for (const row of spans(from, to)) {
    const x = laneX(row.lane),
      c = color(row.lane);
    const bends = row.last > row.index && rows[row.last].lane !== row
    .lane; /* the lane ends in a curve to another one */
    if (row.last > row.index) lines.append(svg("path", { class: "lane", style: `stroke:${c}`,
      d: `M${x} ${y(Math.max(row.index, from - 1))}V${Math.min(y(row.last) - (bends ? ROW * 0.7 : 0), y(to))}` }));
    for (const r of row.readers) {
      if (r < from - 1 || r > to || rows[r].lane === row.lane) continue;
      lines.append(svg("path", { class: "lane", style: `stroke:${c}`,
        d: `M${x} ${y(r) - ROW * 0.7}C${x} ${y(r) - 4} ${laneX(rows[r].lane)} ${y(r) - ROW * 0.6} ${laneX(rows[r].lane)} ${y(r)}` }));
    }
  }
  for (let i = from; i < to; i++) dots.append(svg("circle", { cx: laneX(rows[i].lane), cy: y(i), r: rows[i]
      .backward === null ? 3 : 4,
    style: `fill:${rows[i].backward === null ? "var(--card)" : color(rows[i].lane)};stroke:${color(rows[i].lane)};stroke-width:1.6` }));
  g.append(lines, dots);
  return g;
}

/* Returns a function that finds the rows whose lanes cross a range. Rows are kept by blocks, so that long tapes scroll
 * smoothly. */
function spanFinder(rows) {
  const BLOCK = 64,
    blocks = [];
  for (const row of rows)
    for (let b = Math.floor(row.index / BLOCK); b <= Math.floor(row.last / BLOCK); b++)(blocks[b] = blocks[b] || [])
      .push(row);
  return (from, to) => {
    const found = new Set();
    for (let b = Math.max(0, Math.floor(from / BLOCK)); b <= Math.floor(to / BLOCK); b++)
      for (const row of blocks[b] || [])
        if (row.last >= from - 1 && row.index <= to) found.add(row);
    return found;
  };
}

function describeInput(rows, input) {
  if (input === null) return "absent";
  if (!known(input)) return input;
  const row = rows.find(r => r.number === input);
  return row ? `${row.name} (op ${input})` : `op ${input}`;
}

function tapeDetail(box, rows, row) {
  const facts = [
    ["op", `${row.name}, number ${row.number}`],
    ["inputs", row.inputs.map(i => describeInput(rows, i)).join(", ")],
    ["result", row.out],
    row.placement ? ["placement", row.placement] : null,
    ["time",
      `forward ${duration(row.forward / 1e6)}${row.backward === null ? "" : `, backward ${duration(row.backward / 1e6)}`}${row.flops ? `; ${count(row.flops)} FLOPs` : ""}`
      ],
    row.saved ? ["saved", bytes(row.saved)] : null,
    row.site.scope ? ["in", row.site.scope] : null,
    row.site.source ? ["source", row.site.source] : null,
  ].filter(Boolean);
  box.replaceChildren(...facts.flatMap(([k, v]) => [el("dt", {}, k), el("dd", { class: k === "source" ? "mono" : "" },
    v)]));
}

function tapeCard(step) {
  const rank = step.ranks[0],
    all = tapeRows(rank);
  if (!all.length) return null;
  let rows = all,
    spans = null,
    lanes = 0,
    graph = 0,
    shown = "",
    selected = all.reduce((a, b) => b.forward + (b.backward || 0) > a.forward + (a.backward || 0) ? b : a);
  const detail = el("dl", { class: "detail" }),
    box = el("div", { class: "tape", tabindex: "0", "aria-label": "ops of the tape" });
  const inner = el("div", { class: "all" }),
    list = el("div", { class: "rows" }),
    titles = el("div", { class: "titles" });
  const longest = Math.max(...all.map(r => r.forward + (r.backward || 0)));
  let width = 0,
    columns = "";
  inner.append(list);
  box.append(inner);

  function prepare() {
    lanes = rows === all ? layLanes(rows) : 0;
    spans = rows === all ? spanFinder(rows) : null;
    graph = rows === all ? laneX(Math.max(0, lanes - 1)) + 12 : 8;
    inner.style.height = `${rows.length * ROW}px`;
    shown = "";
    layout();
  }

  function layout() {
    const wide = width > 760,
      middle = width > 520;
    columns =
      `${graph}px minmax(90px,${wide ? "1fr" : "1.2fr"}) ${wide ? "minmax(110px,1.1fr) " : ""}${middle ? "minmax(90px,1fr) " : ""}64px 64px`;
    titles.style.gridTemplateColumns = columns;
    const names = ["", "op", ...(wide ? ["in"] : []), ...(middle ? ["result"] : []), "forward", "backward"];
    titles.replaceChildren(...names.map(n => el("div", { class: n === "forward" || n === "backward" ? "number" : "" },
      n)));
    shown = "";
    draw();
  }

  function rowElement(row) {
    const heat = v => v ? duration(v / 1e6) : "",
      share = (row.forward + (row.backward || 0)) / longest;
    const cells = [el("div", {}), el("div", { style: share > 0.3 ? "font-weight:650" : "" }, row.name)];
    if (width > 760) cells.push(el("div", { class: "dim" }, row.site.scope));
    if (width > 520) cells.push(el("div", { class: "dim" }, row.out));
    cells.push(el("div", { class: "number" }, heat(row.forward)), el("div", { class: "number" }, heat(row.backward)));
    const node = el("div", { class: "op", role: "row", "aria-selected": String(row === selected),
      style: `grid-template-columns:${columns}`, onpointerenter: () => tapeDetail(detail, all, row),
    onclick: () => select(row) }, ...cells);
    return node;
  }

  function select(row) {
    selected = row;
    shown = "";
    draw();
    tapeDetail(detail, all, row);
  }

  function draw() {
    if (!width) return;
    const from = Math.max(0, Math.floor(box.scrollTop / ROW) - 8),
      to = Math.min(rows.length, from + Math.ceil(box.clientHeight / ROW) + 16);
    const key = `${from} ${to} ${width} ${rows.length}`;
    if (key === shown) return;
    shown = key;
    list.style.top = `${from * ROW}px`;
    list.replaceChildren(...rows.slice(from, to).map(rowElement));
    inner.querySelectorAll("svg").forEach(s => s.remove());
    if (spans) inner.append(drawLanes(rows, spans, from, to, graph));
  }

  function filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = r => words.every(w => `${r.name} ${r.site.scope} ${r.site.source} ${r.out} ${r.placement}`
      .toLowerCase().includes(w));
    rows = words.length ? all.filter(fits) : all;
    box.scrollTop = 0;
    prepare();
  }

  box.addEventListener("scroll", draw, { passive: true });
  box.addEventListener("keydown", e => {
    const by = { ArrowDown: 1, ArrowUp: -1 } [e.key],
      at = rows.indexOf(selected) + (by || 0);
    if (!by || !rows[at]) return;
    e.preventDefault();
    if (at * ROW < box.scrollTop) box.scrollTop = at * ROW;
    if ((at + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (at + 1) * ROW - box.clientHeight;
    select(rows[at]);
  });
  onWidth(box, w => (width = w, layout()));
  prepare();
  tapeDetail(detail, all, selected);
  if (all.length * ROW < 640) box.style.height = `${all.length * ROW + 2}px`;
  const search = el("input", { type: "search", class: "field",
  placeholder: "Filter: matmul, layers.0", "aria-label": "filter ops", oninput: e => filter(e.target.value) });
  const note =
    `${all.length.toLocaleString("en")} ops${step.ranks.length > 1 ? " of rank 0" : ""}, in the order in which they ran. A line leads from an op to those that read its result; an op without a backward has an empty dot.`;
  return card("Tape", note, el("div", { class: "controls" }, search), titles, box, detail);
}
