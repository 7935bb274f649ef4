/* The curves of runs: the losses in a large chart, and norms, rates and memory in small ones. */

const X_NAMES = {step: "step", tokens: "tokens", seconds: "time"};
const SHARES = [0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16]; /* of all points, over which the curves are smoothed */

/* ---- Points ---- */

/* Returns the points of a run's curve; those whose value is unknown are left out. */
function curvePoints(run, key, by) {
  const curve = run.curves[key], x = run.curves[by];
  return curve ? x.map((v, i) => [v, curve.mean[i]]).filter(p => known(p[0]) && known(p[1])) : [];
}

/* Returns the range of each point if points stand for several steps; null if each is one step. */
function curveBand(run, key, by) {
  const curve = run.curves[key], x = run.curves[by];
  return curve && curve.lo ? x.map((v, i) => [v, curve.lo[i], curve.hi[i]]).filter(p => p.every(known)) : null;
}

function validationPoints(run, by) {
  const column = {step: 0, seconds: 1, tokens: 2}[by];
  return run.curves.val.map(v => [v[column], v[3]]).filter(p => known(p[0]) && known(p[1]));
}

/* The exponential moving average of values, with the usual correction for its beginning. */
function average(values, keep) {
  let s = 0, weight = 0;
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

/* The range of the smoothed lines. The first hundredth of a long line is left out: there, losses are high. */
function smoothRange(series) {
  const values = series.filter(s => !s.faint).flatMap(s => {
    const from = s.points.length > 40 ? Math.floor(s.points.length / 100) : 0;
    return s.points.slice(from).map(p => p[1]);
  });
  return values.reduce(([lo, hi], v) => [Math.min(lo, v), Math.max(hi, v)], [Infinity, -Infinity]);
}

/* ---- Charts ---- */

/* The options that all charts of runs have in common: the horizontal axis. */
function byX(state) {
  const text = v => (state.by === "seconds" ? duration(v) : count(v));
  const exact = v => (state.by === "seconds" ? duration(v) : Math.round(v).toLocaleString("en"));
  return {x: text, xTitle: () => X_NAMES[state.by], tipTitle: v => `${X_NAMES[state.by]} ${exact(v)}`};
}

/* The lines of the losses of a run. If it is the only one, training and validation have a color each. */
function lossSeries(run, i, one, state) {
  const raw = curvePoints(run, "loss", state.by), val = validationPoints(run, state.by), out = [];
  const band = one ? curveBand(run, "loss", state.by) : null;
  if (state.share > 0) out.push({label: "", color: color(i), points: raw, band, faint: true, quiet: true});
  out.push({label: one ? "training" : run.name, color: color(i), points: smooth(raw, state.share)});
  const how = one ? {label: "validation", color: color(1)}
    : {label: `${run.name}, validation`, color: color(i), dash: "5 4", unlabeled: true};
  out.push({...how, points: val, dots: true, thin: true});
  return out;
}

/* Runs of earlier versions did not write times and tokens. */
function hasX(run, key) {
  const x = run.curves[key];
  return key === "step" || x[x.length - 1] > 0;
}

function lossControls(runs, state, again) {
  const set = (key, v) => {
    state[key] = v;
    again();
  };
  const axes = Object.entries(X_NAMES).filter(([key]) => runs.every(r => hasX(r, key)));
  const slider = el("input", {
    type: "range", min: 0, max: SHARES.length - 1, step: 1, value: SHARES.indexOf(state.share),
    "aria-label": "smoothing", oninput: e => set("share", SHARES[e.target.value]),
  });
  return el("div", {class: "controls"},
    choice("horizontal axis", axes, state.by, v => set("by", v)),
    choice("vertical axis", [[false, "linear"], [true, "log"]], state.log, v => set("log", v)),
    el("label", {}, "smoothing ", slider));
}

function lossCard(runs, state, charts) {
  const one = runs.length === 1;
  const big = chart({
    ...byX(state), title: "loss", height: 380, labels: true, range: smoothRange, log: () => state.log,
    series: () => runs.flatMap((run, i) => lossSeries(run, i, one, state)),
    y: v => digits(v, 5), tick: (v, all) => (state.log ? digits(v, 3) : tickText(v, all)),
  });
  charts.push(big);
  const band = one && runs[0].curves.width > 1 ? " Each point stands for several steps; the band is their range." : "";
  const note = `Nats per token.${one ? "" : " Dashed: validation."}${band}`;
  return card("Loss", note, lossControls(runs, state, () => charts.forEach(c => c.redraw())), big);
}

/* A small chart of one number of all runs; null if no run has it. */
function numberCard(runs, state, charts, title, note, key, options) {
  if (!runs.some(r => r.curves[key])) return null;
  const one = runs.length === 1, scatters = options.range && state.share > 0;
  const lines = (run, i) => {
    const raw = curvePoints(run, key, state.by), c = color(i);
    const line = {label: one ? title.toLowerCase() : run.name, color: c, thin: true};
    const behind = {label: "", color: c, points: raw, faint: true, quiet: true};
    return [...(one && scatters ? [behind] : []), {...line, points: options.range ? smooth(raw, state.share) : raw}];
  };
  const small = chart({...byX(state), title, height: 190, series: () => runs.flatMap(lines), ...options});
  charts.push(small);
  return card(title, note, null, small);
}

/* ---- Facts ---- */

function factText(key, v) {
  if (key === "seconds") return duration(+v);
  return key === "model" ? v : v.replace(/(?<![\d.])\d{4,}(?![\d.])/g, n => (+n).toLocaleString("en"));
}

function factName(key) {
  return key === "seconds" ? "time" : key;
}

function factList(facts) {
  const pair = ([k, v]) => el("div", {}, el("dt", {}, factName(k)), el("dd", {}, factText(k, v)));
  return el("dl", {class: "facts"}, ...facts.map(pair));
}

function runName(run, i) {
  return el("span", {class: "name"}, el("i", {class: "key", style: `border-color:${color(i)}`}), run.name);
}

/* The facts of several runs: a table where there is room, else a list for each run. */
function runsCard(runs) {
  const names = new Set(runs.flatMap(r => r.facts.map(f => f[0])));
  const keys = [...names].sort((a, b) => (b === "model") - (a === "model"));
  const value = (run, key) => factText(key, (run.facts.find(f => f[0] === key) || [key, "\u2013"])[1]);
  const rows = runs.map((r, i) => [runName(r, i), ...keys.map(k => value(r, k))]);
  const table = plainTable(["run", ...keys.map(factName)], rows, keys[0] === "model" ? 2 : 1);
  const lists = runs.map((r, i) => el("div", {class: "run"}, runName(r, i), factList(r.facts)));
  return card("Runs", null, null, el("div", {class: "wide"}, table), el("div", {class: "narrow"}, ...lists));
}

function runSections(runs) {
  const state = {by: "step", share: 0.02, log: false}, charts = [];
  const small = (title, note, key, options) => numberCard(runs, state, charts, title, note, key, options);
  const numbers = [
    small("Gradient norm", "Before clipping.", "grad_norm",
      {y: v => digits(v, 4), tick: tickText, zero: true, range: smoothRange}),
    small("Learning rate", null, "lr", {y: v => digits(v, 4), tick: tickText, zero: true}),
    small("Tokens per second", "Of the steps, without validations.", "tokens_per_s",
      {y: count, zero: true, range: smoothRange}),
    small("Memory", "The peak of each step, on rank 0.", "peak_bytes", {y: bytes, zero: true, binary: true}),
    small("Loss scale", null, "loss_scale", {y: count, zero: true}),
  ];
  const several = runs.length > 1 ? [runsCard(runs)] : [];
  return [...several, lossCard(runs, state, charts), el("div", {class: "columns"}, ...numbers.filter(Boolean))];
}
