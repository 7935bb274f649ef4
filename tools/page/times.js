/* Where the time of a step goes: forward and backward of each kind of op. */

function timesByOp(rank) {
  const all = new Map();
  for (const op of rank.ops) {
    if (!all.has(op.n)) all.set(op.n, { name: op.n, calls: 0, forward: 0, backward: 0, flops: 0 });
    const row = all.get(op.n);
    if (op.b) row.backward += op.d, row.flops += op.f || 0;
    else row.forward += op.d, row.calls++;
  }
  return [...all.values()].filter(r => r.forward + r.backward > 0).sort((a, b) => b.forward + b.backward - a.forward -
    a.backward);
}

function timesCard(step) {
  const rank = step.ranks[0],
    rows = timesByOp(rank),
    most = 14;
  const shown = rows.slice(0, most),
    rest = rows.slice(most);
  if (rest.length) shown.push({ name: `${rest.length} others`, forward: sum(rest, r => r.forward), backward: sum(rest,
      r => r.backward), calls: sum(rest, r => r.calls), flops: 0 });
  const longest = Math.max(...shown.map(r => r.forward + r.backward)),
    all = sum(rows, r => r.forward + r.backward);
  const forward = sum(rows, r => r.forward),
    other = rank.seconds * 1e6 - all;
  const bars = el("div", { class: "bars" });
  for (const r of shown) {
    const total = r.forward + r.backward,
      part = v => `${(100 * v / longest).toFixed(2)}%`;
    const rate = r.flops && r.forward ? `; forward ${short(r.flops / r.forward / 1e3)} GFLOP/s` : "";
    const title =
      `${r.name}: ${r.calls} calls; forward ${duration(r.forward / 1e6)}, backward ${duration(r.backward / 1e6)}${rate}`;
    bars.append(el("div", { class: "what", title }, r.name),
      el("div", { class: "bar", title }, el("i", { style: `width:${part(r.forward)};background:${color(0)}` }), el(
        "i", { style: `width:${part(r.backward)};background:${color(1)}` })),
      el("div", { class: "value" }, duration(total / 1e6)), el("div", { class: "value" },
        `${(100 * total / all).toFixed(total / all < 0.0995 ? 1 : 0)} %`));
  }
  const legend = el("div", { class: "legend" },
    el("span", {}, el("i", { style: `background:${color(0)}` }), `forward ${duration(forward / 1e6)}`),
    el("span", {}, el("i", { style: `background:${color(1)}` }), `backward ${duration((all - forward) / 1e6)}`),
    other > 0 ? el("span", {}, `outside of ops ${duration(other / 1e6)}`) : null);
  const note =
    `Step ${step.number.toLocaleString("en")} took ${duration(rank.seconds)}${step.ranks.length > 1 ? " on rank 0" : ""}. Shares are of the time within ops.`;
  return card("Time by op", note, null, legend, bars);
}
