/* The memory over a step, and what was alive at its peak. */

function memoryCard(step) {
  const rank = step.ranks[0];
  if (!rank.ops.length) return null;
  const points = rank.ops.map(op => [(op.t + op.d) / 1e6, op.m]);
  const name = op => `${op.b ? "the backward of " : ""}${op.n}`;
  const backward = rank.ops.find(op => op.b), peak = rank.ops.reduce((a, b) => (b.m > a.m ? b : a));
  const marks = [{x: (peak.t + peak.d) / 1e6, text: "peak"}];
  if (backward) marks.push({x: backward.t / 1e6, text: "backward begins"});
  const c = chart({
    title: "memory", height: 240, zero: true, binary: true, x: duration, y: bytes, xTitle: () => "time in the step",
    series: () => [{label: "in use", color: color(0), points, thin: true, area: true}],
    marks: () => marks,
    tipTitle: v => `after ${duration(v)}`,
    more: v => {
      const op = rank.ops[points.indexOf(nearest(points, v))], scope = place(rank.sites[op.s]).scope;
      return [el("div", {class: "dim"}, `${name(op)}${scope ? ` in ${scope}` : ""}`)];
    },
  });
  const most = `The greatest was ${bytes(peak.m)}, after ${name(peak)}.`;
  const note = `Bytes in use after each op${ofRank0(step, " of")}. ${most}`;
  return card("Memory over the step", note, null, c);
}

/* A bar that the categories divide, and what their colors mean. */
function categoryBar(kinds, all) {
  const part = ([kind, v], i) =>
    el("i", {title: `${kind}: ${bytes(v)}`, style: `width:${(100 * v / all).toFixed(2)}%;background:${color(i)}`});
  return [
    el("div", {class: "bars"}, el("div", {class: "bar", style: "grid-column:1/-1"}, ...kinds.map(part))),
    legend(kinds.map(([kind, v]) => `${kind} ${bytes(v)}`)),
  ];
}

function blockRow(block, number) {
  const made = block.op ? `${block.op}${block.scope ? ` in ${block.scope}` : ""}` : "";
  return el("tr", {},
    el("td", {class: "number"}, bytes(block.bytes)),
    el("td", {}, el("i", {class: "dot", style: `background:${color(number)}`}), block.category),
    el("td", {class: "mono"}, block.name || made || "unnamed",
      block.name && made ? el("div", {class: "dim"}, made) : null,
      block.site ? el("div", {class: "dim"}, block.site) : null));
}

function peakCard(step) {
  const memory = step.ranks[0].memory, few = 9;
  if (!memory) return null;
  const kinds = Object.entries(memory.peak_by).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1]);
  const number = new Map(kinds.map(([kind], i) => [kind, i]));
  const rows = memory.blocks.map(b => blockRow(b, number.get(b.category) || 0));
  const body = el("tbody", {}, ...rows.slice(0, few));
  const head = el("tr", {}, el("th", {class: "number"}, "bytes"), el("th", {}, "category"), el("th", {}, "tensor"));
  const table = el("div", {class: "scroll"}, el("table", {}, el("thead", {}, head), body));
  const more = showAll(rows.length, few, "blocks", () => body.append(...rows.slice(few)));
  const note = `${bytes(memory.peak)} were in use; ${bytes(memory.reserved)} were obtained from the system.`;
  return card("At the peak", note, null, ...categoryBar(kinds, memory.peak), table, more);
}
