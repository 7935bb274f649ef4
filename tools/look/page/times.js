/* Where the time of a step goes: forward and backward of each kind of op. */

/* Returns a row for each kind of op that took time, the longest first; times are in microseconds. */
function timesByOp(rank) {
  const all = new Map();
  for (const op of rank.ops) {
    if (!all.has(op.n)) all.set(op.n, {name: op.n, calls: 0, forward: 0, backward: 0, flops: 0});
    const row = all.get(op.n);
    row[op.b ? "backward" : "forward"] += ownTime(op);
    row.calls += op.b ? 0 : 1;
    row.flops += op.f || 0;
  }
  const rows = [...all.values()].filter(r => r.forward + r.backward > 0);
  return rows.sort((a, b) => b.forward + b.backward - a.forward - a.backward);
}

/* Joins the rows after the first `most` to one. */
function withRest(rows, most) {
  const rest = rows.slice(most), of = key => sum(rest, r => r[key]);
  if (rest.length < 2) return rows;
  const others = {name: `${rest.length} others`, calls: of("calls"), forward: of("forward"), backward: of("backward")};
  return [...rows.slice(0, most), others];
}

function timeBar(r, longest, all) {
  const total = r.forward + r.backward, share = 100 * total / all;
  const part = (v, i) => el("i", {style: `width:${(100 * v / longest).toFixed(2)}%;background:${color(i)}`});
  const rate = r.flops && r.forward ? `; forward ${short(r.flops / r.forward / 1e3)} GFLOP/s` : "";
  const times = `forward ${micro(r.forward)}, backward ${micro(r.backward)}`;
  const title = `${r.name}: ${r.calls.toLocaleString("en")} calls; ${times}${rate}`;
  return [
    el("div", {class: "what", title}, r.name),
    el("div", {class: "bar", title}, part(r.forward, 0), part(r.backward, 1)),
    el("div", {class: "value"}, micro(total)),
    el("div", {class: "value"}, `${share.toFixed(share < 9.95 ? 1 : 0)} %`),
  ];
}

function timesCard(step) {
  const rank = step.ranks[0], rows = timesByOp(rank), shown = withRest(rows, 14);
  const forward = sum(rows, r => r.forward), all = sum(rows, r => r.forward + r.backward);
  const longest = Math.max(...shown.map(r => r.forward + r.backward)), outside = rank.seconds - all / 1e6;
  const note = `Step ${step.number.toLocaleString("en")} took ${duration(rank.seconds)}${ofRank0(step, " on")}. ` +
    "Shares are of the time within ops.";
  const keys = legend([`forward ${micro(forward)}`, `backward ${micro(all - forward)}`]);
  if (outside > 0) keys.append(el("span", {}, `outside of ops ${duration(outside)}`));
  return card("Time by op", note, null, keys, el("div", {class: "bars"}, ...shown.map(r => timeBar(r, longest, all))));
}
