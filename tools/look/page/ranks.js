/* What the ranks did during a step: a row for each over time, and tables of collectives and placements. */

/* Returns the spans [begin, end] of ops or calls, with those joined that are less than `gap` apart, so that a row of
 * the picture has few elements. */
function joinedSpans(list, shift, gap) {
  const spans = list.map(o => [shift + o.t, shift + o.t + o.d]).sort((a, b) => a[0] - b[0]), out = [];
  for (const s of spans) {
    const last = out[out.length - 1];
    if (last && s[0] - last[1] <= gap) last[1] = Math.max(last[1], s[1]);
    else out.push(s);
  }
  return out;
}

/* Returns when each rank began, in microseconds after the first. If these times differ by more than a minute, the
 * clocks are those of several machines, and all ranks are shown as if they had begun together. */
function beginnings(ranks) {
  const first = Math.min(...ranks.map(r => r.began)), after = ranks.map(r => (r.began - first) * 1e6);
  return Math.max(...after) > 60e6 ? after.map(() => 0) : after;
}

function drawRank(root, rank, shift, y, x, pixel) {
  const kinds = [
    ["forward", rank.ops.filter(o => !o.b), 0, 13],
    ["backward", rank.ops.filter(o => o.b), 0, 13],
    ["collectives", rank.collectives, 15, 6],
  ];
  kinds.forEach(([name, list, top, height], i) => {
    for (const [begin, end] of joinedSpans(list, shift, pixel)) {
      const at = {x: x(begin), y: y + top, width: Math.max(1, x(end) - x(begin)), height, rx: 1.5};
      const title = `rank ${rank.rank}, ${name}: ${micro(end - begin)}`;
      root.append(svg("rect", {...at, style: `fill:${color(i)}`}, svg("title", {}, title)));
    }
  });
}

function ranksChart(ranks) {
  const box = el("div", {class: "chart"}), ROWS = 30, LEFT = 62, begin = beginnings(ranks);
  const end = Math.max(...ranks.map((r, i) => begin[i] + r.seconds * 1e6));
  onWidth(box, width => {
    const inner = width - LEFT - 14, height = ranks.length * ROWS + 30, x = v => LEFT + v / end * inner;
    const root = svg("svg", {height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "ranks over time"});
    for (const v of ticks(0, end, Math.max(2, Math.floor(inner / 100)))) {
      root.append(svg("line", {class: "grid", x1: x(v), x2: x(v), y1: 0, y2: height - 26}),
        svg("text", {x: x(v), y: height - 8, "text-anchor": "middle"}, micro(v)));
    }
    ranks.forEach((r, i) => {
      root.append(svg("text", {x: LEFT - 10, y: i * ROWS + 16, "text-anchor": "end"}, `rank ${r.rank}`));
      drawRank(root, r, begin[i], i * ROWS + 4, x, end / inner);
    });
    box.replaceChildren(root);
  });
  return box;
}

/* A table whose columns from number `numbers` on are numbers. */
function plainTable(heads, rows, numbers) {
  const cell = (name, text, i) => el(name, {class: i >= numbers ? "number" : null}, text);
  return el("div", {class: "scroll"}, el("table", {},
    el("thead", {}, el("tr", {}, ...heads.map((h, i) => cell("th", h, i)))),
    el("tbody", {}, ...rows.map(row => el("tr", {}, ...row.map((c, i) => cell("td", c, i)))))));
}

function collectivesTable(ranks) {
  const all = new Map();
  for (const c of ranks.flatMap(r => r.collectives)) {
    const key = `${c.kind} ${c.group} ${c.dtype}`;
    if (!all.has(key)) all.set(key, {...c, calls: 0, count: 0, time: 0, longest: 0});
    const row = all.get(key);
    row.calls++;
    row.count += c.count;
    row.time += c.d;
    row.longest = Math.max(row.longest, c.d);
  }
  const n = ranks.length, rows = [...all.values()].sort((a, b) => b.time - a.time);
  const heads = ["collective", "group", "dtype", "calls a rank", "elements a rank", "time a rank", "longest"];
  return plainTable(heads, rows.map(r => [r.kind, r.group || "world", r.dtype, short(r.calls / n), count(r.count / n),
    micro(r.time / n), micro(r.longest)]), 3);
}

/* How often each placement occurs among the results of rank 0; nothing if ranks divide no tensors. */
function placements(rank) {
  const all = new Map();
  for (const op of rank.ops.filter(o => o.p)) {
    if (!all.has(op.p)) all.set(op.p, {n: 0, ops: new Set()});
    all.get(op.p).n++;
    all.get(op.p).ops.add(op.n);
  }
  if (!all.size) return [];
  const sorted = [...all].sort((a, b) => b[1].n - a[1].n), heads = ["placement", "results", "of ops"];
  const rows = sorted.map(([p, r]) => [p, String(r.n), [...r.ops].join(", ")]);
  return [el("h3", {}, "Placements of results on rank 0"), plainTable(heads, rows, heads.length)];
}

function ranksCard(step) {
  const ranks = step.ranks;
  const note = "What each rank did over the step. A collective's time includes the wait for others.";
  if (ranks.length < 2) return null;
  return card("Ranks", note, null, legend(["forward", "backward", "collectives"]), ranksChart(ranks),
    collectivesTable(ranks), ...placements(ranks[0]));
}
