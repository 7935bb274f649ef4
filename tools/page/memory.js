/* The memory over a step, and what was alive at its peak. */

function memoryCard(step) {
  const rank = step.ranks[0];
  if (!rank.ops.length) return null;
  const points = rank.ops.map(op => [(op.t + op.d) / 1e6, op.m]);
  const turn = rank.ops.find(op => op.b),
    peak = rank.ops.reduce((a, b) => b.m > a.m ? b : a);
  const c = chart({
    title: "memory",
    height: 240,
    labels: false,
    zero: true,
    series: () => [{ label: "in use", color: color(0), points, thin: true, area: true }],
    x: duration,
    y: bytes,
    binary: true,
    xTitle: () => "time in the step",
    tipTitle: v => `after ${duration(v)}`,
    marks: () => [turn ? { x: turn.t / 1e6, text: "backward begins" } : null, { x: (peak.t + peak.d) / 1e6,
      text: "peak" }].filter(Boolean),
    more: v => {
      const op = rank.ops[nearestIndex(points, v)],
        at = place(rank.sites[op.s]);
      return [el("div", { class: "row" }, el("span", {}, ""), el("span", {},
        `${op.b ? "backward of " : ""}${op.n}`)), at.scope ? el("div", { class: "row" }, el("span", {}, ""),
        el("span", {}, at.scope)) : ""];
    },
  });
  return card("Memory over the step",
    `Bytes in use after each op${step.ranks.length > 1 ? " of rank 0" : ""}. The greatest was ${bytes(peak.m)}, after ${peak.b ? "the backward of " : ""}${peak.n}.`,
    null, c);
}

function nearestIndex(points, v) {
  return Math.max(0, points.indexOf(nearest(points, v)));
}

function peakCard(step) {
  const memory = step.ranks[0].memory;
  if (!memory || !memory.blocks) return null;
  const kinds = Object.entries(memory.peak_by).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1]);
  const index = new Map(kinds.map(([k], i) => [k, i]));
  const whole = el("div", { class: "bars" }, el("div", { style: "grid-column:1/-1" }, el("div", { class: "bar" },
    ...kinds.map(([k, v], i) => el("i", { title: `${k}: ${bytes(v)}`,
      style: `width:${(100 * v / memory.peak).toFixed(2)}%;background:${color(i)}` })))));
  const legend = el("div", { class: "legend", style: "margin-top:8px" }, ...kinds.map(([k, v], i) => el("span", {},
    el("i", { style: `background:${color(i)}` }), `${k} ${bytes(v)}`)));
  const few = 9,
    rows = memory.blocks.map(b => {
      const made = b.op ? `${b.op}${b.scope ? ` in ${b.scope}` : ""}` : "";
      return el("tr", {}, el("td", { class: "number" }, bytes(b.bytes)),
        el("td", {}, el(
          "i", { style: `display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:7px;background:${color(index.get(b.category) || 0)}` }),
          b.category),
        el("td", { class: "mono" }, b.name || made || "a gradient or temporary", b.name && made ? el(
        "div", { class: "dim" }, made) : null, b.site ? el("div", { class: "dim" }, b.site) : null));
    });
  const body = el("tbody", {}, ...rows.slice(0, few));
  const more = rows.length > few ? el("button", { type: "button", class: "field", style: "margin-top:8px",
      onclick: e => (body.append(...rows.slice(few)), e.target.remove()) },
    `Show all ${rows.length.toLocaleString("en")} blocks`) : null;
  const table = rows.length ? el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el(
    "th", { class: "number" }, "bytes"), el("th", {}, "category"), el("th", {}, "tensor, and what made it"))),
    body)) : null;
  return card("At the peak",
    `${bytes(memory.peak)} were in use; ${bytes(memory.reserved)} were obtained from the system.`, null, whole,
    legend, table, more);
}
