/* The curves of runs: the losses in a large chart, and norms, rates and memory in small ones. */

const X_NAMES = { step: "step", tokens: "tokens", seconds: "time" };

/* Returns the points of a run's curve; steps whose number is unknown are left out. */
function curvePoints(run, key, by) {
  const curve = run.curves[key],
    x = run.curves[by],
    out = [];
  if (!curve) return out;
  for (let i = 0; i < x.length; i++)
    if (known(curve.mean[i]) && known(x[i])) out.push([x[i], curve.mean[i]]);
  return out;
}

/* The range of each point that stands for several steps. */
function curveBand(run, key, by) {
  const curve = run.curves[key],
    x = run.curves[by],
    out = [];
  if (!curve || !curve.lo) return null;
  for (let i = 0; i < x.length; i++)
    if (known(curve.lo[i]) && known(curve.hi[i])) out.push([x[i], curve.lo[i], curve.hi[i]]);
  return out;
}

function validationPoints(run, by) {
  const column = { step: 0, seconds: 1, tokens: 2 } [by];
  return run.curves.val.map(v => [v[column], v[3]]).filter(p => known(p[0]) && known(p[1]));
}

/* The exponential moving average of values, with the usual correction for its beginning. */
function average(values, keep) {
  let s = 0,
    weight = 0;
  return values.map(v => {
    s = keep * s + (1 - keep) * v;
    weight = keep * weight + (1 - keep);
    return s / weight;
  });
}

/* Smooths over about the share of all points. The average runs forward and then backward, so that it does not lag. */
function smooth(points, share) {
  const n = share * points.length / 2;
  if (n <= 1) return points;
  const values = average(average(points.map(p => p[1]), 1 - 1 / n).reverse(), 1 - 1 / n).reverse();
  return points.map((p, i) => [p[0], values[i]]);
}

function xText(by) {
  return by === "seconds" ? duration : count;
}

/* The lines of the losses. With one run, training and validation have a color each; with several, each run has one. */
function lossSeries(runs, state) {
  const out = [],
    one = runs.length === 1;
  runs.forEach((run, i) => {
    const raw = curvePoints(run, "loss", state.by),
      line = smooth(raw, state.share),
      val = validationPoints(run, state.by);
    const name = one ? "training" : run.name,
      c = color(i),
      v = one ? color(1) : c;
    if (state.share > 0) out.push({ label: "", color: c, points: raw, faint: true, quiet: true, band: one ?
        curveBand(run, "loss", state.by) : null });
    out.push({ label: name, color: c, points: line, key: "loss" });
    if (val.length) out.push({ label: one ? "validation" : `${run.name}, validation`, color: v, points: val,
      dash: one ? null : "5 4", dots: true, thin: true, unlabeled: !one });
  });
  return out;
}

/* The losses of the first steps are high: the chart shows what the smoothed lines cover after the first few points. */
function lossRange(series) {
  let lo = Infinity,
    hi = -Infinity;
  for (const s of series)
    if (!s.faint) {
      const from = s.points.length > 40 ? Math.floor(s.points.length * 0.01) : 0;
      for (const p of s.points.slice(from)) lo = Math.min(lo, p[1]), hi = Math.max(hi, p[1]);
    }
  return [lo, hi];
}

function lossCard(runs, state, redraw) {
  const big = chart({
    title: "loss",
    height: 380,
    labels: true,
    series: () => lossSeries(runs, state),
    range: lossRange,
    log: () => state.log,
    x: v => xText(state.by)(v),
    y: v => digits(v, 5),
    tick: (v, all) => state.log ? digits(v, 3) : tickText(v, all),
    xTitle: () => X_NAMES[state.by],
    tipTitle: v =>
      `${X_NAMES[state.by]} ${state.by === "seconds" ? duration(v) : Math.round(v).toLocaleString("en")}`,
  });
  redraw.push(() => big.redraw());
  const again = () => redraw.forEach(f => f());
  const by = choice("horizontal axis", Object.entries(X_NAMES).filter(([k]) => runs.every(r => hasX(r, k))), state.by,
    v => (state.by = v, again()));
  const log = choice("vertical axis", [[false, "linear"], [true, "log"]], state.log, v => (state.log = v, again()));
  const slider = el("input", {
    type: "range",
    min: 0,
    max: 6,
    step: 1,
    value: 3,
    "aria-label": "smoothing",
    oninput: e => {
      state.share = [0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16][e.target.value];
      again();
    }
  });
  const controls = el("div", { class: "controls" }, by, log, el("label", {}, "smoothing ", slider));
  const several = runs[0].curves.width > 1 ? " Each point stands for several steps; the band is their range." : "";
  return card("Loss", `Nats per token.${runs.length > 1 ? " Dashed: validation." : ""}${several}`, controls, big);
}

/* Runs of earlier versions did not write times and tokens. */
function hasX(run, key) {
  const x = run.curves[key];
  return x.length < 2 || x[x.length - 1] > x[0];
}

function smallCard(runs, state, redraw, title, note, key, options) {
  if (!runs.some(r => r.curves[key])) return null;
  const c = chart({
    title,
    height: 190,
    labels: false,
    series: () => runs.flatMap((run, i) => {
      const raw = curvePoints(run, key, state.by);
      const line = options.smooth ? smooth(raw, state.share) : raw;
      const lines = [{ label: runs.length > 1 ? run.name : title.toLowerCase(), color: color(i), points: line,
        thin: true }];
      if (options.smooth && runs.length === 1 && state.share > 0) lines.unshift({ label: "", color: color(i),
        points: raw, faint: true, quiet: true });
      return lines;
    }),
    range: options.range,
    zero: options.zero,
    x: v => xText(state.by)(v),
    y: options.y,
    tick: options.tick,
    binary: options.binary,
    xTitle: () => X_NAMES[state.by],
    tipTitle: v =>
      `${X_NAMES[state.by]} ${state.by === "seconds" ? duration(v) : Math.round(v).toLocaleString("en")}`,
  });
  redraw.push(() => c.redraw());
  return card(title, note, null, c);
}

function factText(key, v) {
  return key === "seconds" ? duration(+v) : key === "model" ? v : v.replace(/(?<![\d.])\d{4,}(?![\d.])/g, n => (+n)
    .toLocaleString("en"));
}

function factName(key) {
  return key === "seconds" ? "time" : key;
}

function runHeader(run, i, several) {
  const facts = run.facts.map(([k, v]) => el("div", {}, el("dt", {}, factName(k)), el("dd", {}, factText(k, v))));
  const name = several ? el("div", { class: "name" }, el("i", { class: "key", style: `border-color:${color(i)}` }),
    run.name) : null;
  return el("div", { class: several ? "run" : "" }, name, el("dl", { class: "facts" }, ...facts));
}

/* The facts of several runs: a table where there is room, else a list for each run. */
function runsCard(runs) {
  const keys = [...new Set(runs.flatMap(r => r.facts.map(f => f[0])))],
    numbers = k => k !== "model";
  const of = (run, key) => (run.facts.find(f => f[0] === key) || ["", "\u2013"])[1];
  const table = el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "run"), ...keys.map(k => el(
    "th", { class: numbers(k) ? "number" : "" }, factName(k))))),
    el("tbody", {}, ...runs.map((r, i) => el("tr", {}, el("td", {}, el("span", { class: "name" }, el(
      "i", { class: "key", style: `border-color:${color(i)}` }), r.name)),
      ...keys.map(k => el("td", { class: numbers(k) ? "number" : "" }, factText(k, of(r, k))))))));
  return card("Runs", null, null, el("div", { class: "scroll wide" }, table), el("div", { class: "narrow" }, ...runs
    .map((r, i) => runHeader(r, i, true))));
}

function runSections(runs) {
  const state = { by: "step", share: 0.02, log: false },
    redraw = [],
    several = runs.length > 1;
  const out = [lossCard(runs, state, redraw)];
  const small = [
    smallCard(runs, state, redraw, "Gradient norm", "Before clipping.", "grad_norm", { smooth: true, y: v => digits(v,
        4), tick: tickText, zero: true, range: lossRange }),
    smallCard(runs, state, redraw, "Learning rate", null, "lr", { y: v => digits(v, 4), tick: tickText, zero: true }),
    smallCard(runs, state, redraw, "Tokens per second", "Of the steps, without validations.",
    "tokens_per_s", { smooth: true, y: count, zero: true, range: lossRange }),
    smallCard(runs, state, redraw, "Memory", "The peak of each step, on rank 0.", "peak_bytes", { y: bytes, zero: true,
      binary: true }),
    smallCard(runs, state, redraw, "Loss scale", null, "loss_scale", { y: count }),
  ].filter(Boolean);
  out.push(el("div", { class: "columns" }, ...small));
  if (several) out.unshift(runsCard(runs));
  return out;
}
