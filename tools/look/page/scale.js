/* Computes the ticks of axes, the shapes of lines, and the places of labels. */

/* Returns ticks from lo to hi, about n of them, at 1, 2 or 5 times a power of ten, or at powers of two if `binary`. */
function ticks(lo, hi, n, binary = false) {
  const rough = (hi - lo) / Math.max(1, n), power = 10 ** Math.floor(Math.log10(rough)), digit = rough / power;
  const factor = digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10, all = [];
  const step = binary ? 2 ** Math.round(Math.log2(rough)) : factor * power;
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; i++) all.push(i * step);
  return all;
}

/* The same for a logarithmic axis: powers of ten, with 2 and 5 times them if they are few. */
function logTicks(lo, hi, n) {
  const from = Math.floor(Math.log10(lo)), to = Math.ceil(Math.log10(hi)), all = [];
  const every = Math.max(1, Math.ceil((to - from) / n)), factors = to - from <= n / 3 ? [1, 2, 5] : [1];
  for (let e = from; e <= to; e += every) all.push(...factors.map(f => f * 10 ** e));
  const inside = all.filter(v => v >= lo * (1 - 1e-9) && v <= hi * (1 + 1e-9));
  return inside.length > 1 ? inside : ticks(lo, hi, n);
}

/* Returns the points of one pixel that a line must visit to look the same: the first, the lowest, the highest and the
 * last one. */
function ends(points) {
  const low = points.reduce((a, b) => (b[1] < a[1] ? b : a)), high = points.reduce((a, b) => (b[1] > a[1] ? b : a));
  return [...new Set([points[0], ...(low[0] < high[0] ? [low, high] : [high, low]), points[points.length - 1]])];
}

/* Leaves out points that cannot be seen, because several lie in one pixel. scale: from x to pixels. */
function decimate(points, scale) {
  const out = [];
  for (let from = 0, to; from < points.length; from = to) {
    const pixel = Math.floor(scale(points[from][0]));
    for (to = from + 1; to < points.length && Math.floor(scale(points[to][0])) === pixel;) to++;
    out.push(...(to - from > 3 ? ends(points.slice(from, to)) : points.slice(from, to)));
  }
  return out;
}

/* Writes a line through points as the data of a path. */
function path(points, x, y) {
  return decimate(points, x).map(([u, v], i) => `${i ? "L" : "M"}${x(u).toFixed(1)} ${y(v).toFixed(1)}`).join("");
}

/* The same for the outline of a band; points are x, low, high. */
function bandPath(points, x, y) {
  const up = path(points.map(p => [p[0], p[2]]), x, y), down = path(points.map(p => [p[0], p[1]]).reverse(), x, y);
  return up ? `${up}L${down.slice(1)}Z` : "";
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

/* Returns the point whose x is nearest to v; null: there is no point. */
function nearest(points, v) {
  let lo = 0, hi = points.length - 1;
  if (hi < 0) return null;
  while (hi - lo > 1) {
    const mid = (lo + hi) >> 1;
    if (points[mid][0] < v) lo = mid;
    else hi = mid;
  }
  return Math.abs(points[lo][0] - v) <= Math.abs(points[hi][0] - v) ? points[lo] : points[hi];
}
