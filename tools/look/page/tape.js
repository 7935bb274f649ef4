/* The tape as a list of ops in the order in which they ran, with the graph on its left: a line leads from each op to
 * those that read its result. Only the rows that can be seen are in the page, so a tape may have any length. */

const ROW = 26, LANE = 11, MOST_LANES = 14;

/* ---- Rows ---- */

function tapeRow(op, sites) {
  return {
    name: op.n, number: op.i, inputs: op.in, out: op.o, placement: op.p || "", ...place(sites[op.s]),
    forward: ownTime(op), backward: null, flops: 0, saved: 0, readers: [],
  };
}

/* Joins the forward and the backward of each op to one row, and finds the rows that read its result. */
function tapeRows(rank) {
  const rows = [], byNumber = new Map();
  for (const op of rank.ops.filter(o => !o.b)) {
    const row = {...tapeRow(op, rank.sites), index: rows.length};
    byNumber.set(op.i, row);
    rows.push(row);
    for (const from of new Set(op.in.filter(known))) byNumber.get(from).readers.push(row.index);
  }
  for (const op of rank.ops.filter(o => o.b && byNumber.has(o.i))) {
    const row = byNumber.get(op.i);
    Object.assign(row, {backward: (row.backward || 0) + ownTime(op), flops: op.f, saved: op.sv});
  }
  return rows;
}

/* ---- The graph ---- */

/* Gives each row a lane that is free from it to its last reader. Returns the number of lanes. */
function layLanes(rows) {
  const until = [];
  for (const row of rows) {
    row.last = row.readers.length ? row.readers[row.readers.length - 1] : row.index;
    const free = until.findIndex(end => end <= row.index);
    row.lane = free < 0 ? until.length : free;
    until[row.lane] = row.last;
  }
  return until.length;
}

/* Returns a function that finds the rows whose lanes cross a range. They are kept by blocks, so that a long tape
 * scrolls smoothly. */
function crossingFinder(rows) {
  const BLOCK = 64, blocks = [], block = i => Math.max(0, Math.floor(i / BLOCK));
  for (const row of rows) {
    for (let b = block(row.index); b <= block(row.last); b++) (blocks[b] = blocks[b] || []).push(row);
  }
  return (from, to) => {
    const near = new Set(blocks.slice(block(from), block(to) + 1).flat());
    return [...near].filter(row => row.last >= from - 1 && row.index <= to);
  };
}

function laneX(lane) {
  return 12 + Math.min(lane, MOST_LANES - 1) * LANE;
}

/* Draws the lane of a row: down to its last reader, and a curve to each reader in another lane. */
function drawLane(group, rows, row, from, to, y) {
  const x = laneX(row.lane), style = `stroke:${color(row.lane)}`, BEND = ROW * 0.7;
  const line = d => group.append(svg("path", {class: "lane", style, d}));
  const bends = rows[row.last].lane !== row.lane;
  const end = Math.min(y(row.last) - (bends ? BEND : 0), y(to));
  if (row.last > row.index) line(`M${x} ${y(Math.max(row.index, from - 1))}V${end}`);
  for (const reader of row.readers) {
    const other = laneX(rows[reader].lane), at = y(reader);
    if (reader < from - 1 || reader > to || other === x) continue;
    line(`M${x} ${at - BEND}C${x} ${at - 4} ${other} ${at - ROW * 0.6} ${other} ${at}`);
  }
}

/* Draws the part of the graph from row `from` to before row `to`. An op without a backward has an empty dot. */
function drawGraph(rows, crossing, from, to, width) {
  const y = i => (i - from + 0.5) * ROW, lines = svg("g"), dots = svg("g");
  for (const row of crossing(from, to)) drawLane(lines, rows, row, from, to, y);
  for (const row of rows.slice(from, to)) {
    const c = color(row.lane), full = row.backward !== null;
    const style = `fill:${full ? c : "var(--card)"};stroke:${c};stroke-width:1.6`;
    dots.append(svg("circle", {cx: laneX(row.lane), cy: y(row.index), r: full ? 4 : 3, style}));
  }
  return svg("svg", {width, height: (to - from) * ROW, style: `top:${from * ROW}px`}, lines, dots);
}

/* ---- The description of a row ---- */

function describeInput(rows, input) {
  if (!known(input)) return input === null ? "absent" : input;
  return `${rows.find(r => r.number === input).name} (op ${input})`;
}

function describeTimes(row) {
  const backward = row.backward === null ? "" : `, backward ${micro(row.backward)}`;
  return `forward ${micro(row.forward)}${backward}${row.flops ? `; ${count(row.flops)} FLOPs` : ""}`;
}

function describe(box, rows, row) {
  const facts = [
    ["op", `${row.name}, number ${row.number}`],
    ["inputs", row.inputs.map(i => describeInput(rows, i)).join(", ")],
    ["result", row.out], ["placement", row.placement], ["time", describeTimes(row)],
    ["saved", row.saved ? bytes(row.saved) : ""], ["in", row.scope], ["source", row.source],
  ];
  box.replaceChildren(...facts.filter(f => f[1]).flatMap(([name, text]) =>
    [el("dt", {}, name), el("dd", {class: name === "source" ? "mono" : null}, text)]));
}

/* ---- The list ---- */

/* Which columns a list of this width has, and their sizes. `graph` is the width of the graph. */
function tapeColumns(width, graph) {
  const wide = width > 760, middle = width > 520;
  return [
    {title: "", size: `${graph}px`, text: () => ""},
    {title: "op", size: `minmax(90px,${wide ? "1fr" : "1.2fr"})`, text: r => r.name},
    wide ? {title: "in", size: "minmax(110px,1.1fr)", text: r => r.scope, dim: true} : null,
    middle ? {title: "result", size: "minmax(90px,1fr)", text: r => r.out, dim: true} : null,
    {title: "forward", size: "70px", time: r => r.forward, series: 0},
    {title: "backward", size: "70px", time: r => r.backward, series: 1},
  ].filter(Boolean);
}

/* A cell with a time, and behind it a bar of that length; `longest` fills the cell. */
function timeCell(time, longest, series) {
  const end = `${(100 * (time || 0) / longest).toFixed(1)}%`;
  const tint = `color-mix(in srgb, ${color(series)} 24%, transparent)`;
  const style = `background:linear-gradient(to left,${tint} ${end},transparent ${end})`;
  return el("div", {class: "number", style}, time ? micro(time) : "");
}

/* Makes the list. chosen(row) is called when a row is pointed at or selected. Returns its elements, and a function that
 * shows only the rows that fit a text. */
function tapeList(all, chosen) {
  const box = el("div", {class: "tape", tabindex: "0", "aria-label": "ops of the tape"});
  const list = el("div", {class: "rows"});
  const inner = el("div", {class: "all"}, list), titles = el("div", {class: "titles"});
  const longest = all.reduce((most, r) => Math.max(most, r.forward, r.backward), 0);
  const graph = laneX(layLanes(all) - 1) + 12, crossing = crossingFinder(all);
  let rows = all, selected = all.find(r => Math.max(r.forward, r.backward) === longest), width = 0, drawn = "";

  function rowElement(row, columns, sizes) {
    const cell = c => (c.time ? timeCell(c.time(row), longest, c.series)
      : el("div", {class: c.dim ? "dim" : null}, c.text(row)));
    return el("div", {
      class: "op", "aria-selected": String(row === selected), style: `grid-template-columns:${sizes}`,
      onpointerenter: () => chosen(row), onclick: () => select(row),
    }, ...columns.map(cell));
  }

  /* Draws the rows that can be seen, and some above and below them. */
  function draw(again) {
    const from = Math.max(0, Math.floor(box.scrollTop / ROW) - 8);
    const to = Math.min(rows.length, from + Math.ceil(box.clientHeight / ROW) + 16), key = `${from} ${to}`;
    if (!width || (key === drawn && !again)) return;
    drawn = key;
    const columns = tapeColumns(width, rows === all ? graph : 8), sizes = columns.map(c => c.size).join(" ");
    titles.style.gridTemplateColumns = sizes;
    titles.replaceChildren(...columns.map(c => el("div", {class: c.time ? "number" : null}, c.title)));
    list.style.top = `${from * ROW}px`;
    list.replaceChildren(...rows.slice(from, to).map(row => rowElement(row, columns, sizes)));
    inner.style.height = `${rows.length * ROW}px`;
    inner.replaceChildren(list, ...(rows === all ? [drawGraph(rows, crossing, from, to, graph)] : []));
  }

  function select(row) {
    selected = row;
    draw(true);
    chosen(row);
  }

  function move(by) {
    const row = rows[rows.indexOf(selected) + by];
    if (!row) return;
    const top = rows.indexOf(row) * ROW;
    box.scrollTop = Math.max(top + ROW - box.clientHeight, Math.min(top, box.scrollTop));
    select(row);
  }

  function filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const texts = r => `${r.name} ${r.scope} ${r.source} ${r.out} ${r.placement}`.toLowerCase();
    rows = words.length ? all.filter(r => words.every(w => texts(r).includes(w))) : all;
    box.scrollTop = 0;
    draw(true);
  }

  box.append(inner);
  box.style.height = `min(70vh, ${Math.min(640, all.length * ROW + 2)}px)`;
  box.addEventListener("scroll", () => draw(false), {passive: true});
  box.addEventListener("keydown", event => {
    const by = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (!by) return;
    event.preventDefault();
    move(by);
  });
  onWidth(box, w => {
    width = w;
    draw(true);
  });
  chosen(selected);
  return {elements: [titles, box], filter};
}

function tapeCard(step) {
  const rows = tapeRows(step.ranks[0]), detail = el("dl", {class: "detail"});
  if (!rows.length) return null;
  const list = tapeList(rows, row => describe(detail, rows, row));
  const search = el("input", {
    type: "search", class: "field", placeholder: "Filter: linear, attn", "aria-label": "filter ops",
    oninput: event => list.filter(event.target.value),
  });
  const note = `${rows.length.toLocaleString("en")} ops${ofRank0(step, " of")}, in the order in which they ran. ` +
    "A line leads from an op to those that read its result; an op without a backward has an empty dot.";
  return card("Tape", note, el("div", {class: "controls"}, search), ...list.elements, detail);
}
