/* Helpers of the page: elements, numbers and times as text, and colors. The scripts of the page share one scope. */
"use strict";

const SVG = "http://www.w3.org/2000/svg";

/* Makes an element of HTML. Attributes whose names begin with "on" are listeners. Children are elements or texts. */
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/* Makes an element of SVG. */
function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter(c => c !== null && c !== undefined));
  return node;
}

/* The color of series i. There are eight; later ones repeat them. */
function color(i) {
  return `var(--s${i % 8})`;
}

/* ---- Numbers as text ---- */

function known(v) {
  return typeof v === "number" && isFinite(v);
}

/* Writes a number with about n digits, in an exponent's form if it is very large or small. */
function digits(v, n = 4) {
  if (!known(v)) return "\u2013";
  if (v === 0) return "0";
  const size = Math.abs(v);
  if (size >= 1e6 || size < 1e-4) return v.toExponential(Math.max(0, n - 2)).replace(/\.?0+e/, "e").replace("e+", "e")
    .replace("-", "\u2212");
  const after = Math.max(0, n - 1 - Math.floor(Math.log10(size)));
  return v.toFixed(Math.min(after, 8)).replace("-", "\u2212");
}

/* Writes a tick with enough digits to differ from its neighbors. */
function tickText(v, all) {
  const step = all.length > 1 ? Math.abs(all[1] - all[0]) : Math.abs(v) || 1;
  if (v === 0) return "0";
  if ((step < 1e-6 || Math.abs(v) >= 1e6)) return digits(v, 3);
  return v.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))).replace("-", "\u2212");
}

/* Writes a count, such as 950, 12.3k or 4.1M. */
function count(v) {
  if (!known(v)) return "\u2013";
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(v) >= size * (letter === "k" ? 10 : 1)) return short(v / size) + letter;
  return short(v);
}

function short(v) {
  const size = Math.abs(v);
  const text = v.toFixed(size >= 100 || v === Math.round(v) ? 0 : size >= 10 ? 1 : 2);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function bytes(v) {
  if (!known(v)) return "\u2013";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; Math.abs(v) >= 1000 && i < 4; i++) v /= 1024;
  return `${short(v)} ${units[i]}`;
}

/* Writes a duration of seconds, such as 1h05, 2:30 (minutes and seconds), 12.5 s, 3.2 ms or 40 \u00b5s. */
function duration(s) {
  if (!known(s)) return "\u2013";
  if (s >= 3600) return `${Math.floor(s / 3600)}h${String(Math.floor(s / 60) % 60).padStart(2, "0")}`;
  if (s >= 60) return `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")}`;
  if (s >= 1 || s === 0) return `${short(s)} s`;
  return s >= 1e-3 ? `${short(s * 1e3)} ms` : `${short(s * 1e6)} \u00b5s`;
}

/* Writes a duration of microseconds. */
function micro(v) {
  return duration(v / 1e6);
}

/* ---- Parts of the page ---- */

function card(title, note, controls, ...children) {
  const heading = el("div", {}, el("h2", {}, title), note ? el("p", {class: "note"}, note) : null);
  return el("section", {class: "card"}, el("div", {class: "head"}, heading, controls), ...children);
}

/* A row of buttons, of which one is pressed. choices: pairs of value and text. */
function choice(label, choices, value, chosen) {
  const buttons = choices.map(([v, text]) => el("button", {type: "button", "aria-pressed": String(v === value)}, text));
  buttons.forEach((button, i) => button.addEventListener("click", () => {
    for (const b of buttons) b.setAttribute("aria-pressed", String(b === button));
    chosen(choices[i][0]);
  }));
  return el("span", {class: "switch", role: "group", "aria-label": label}, ...buttons);
}

/* A key of colors: text i belongs to color i. */
function legend(texts) {
  const key = (text, i) => el("span", {}, el("i", {style: `background:${color(i)}`}), text);
  return el("div", {class: "legend"}, ...texts.map(key));
}

/* A button that shows the rest of a list of which `few` are shown, and then goes away; null if there is no rest. */
function showAll(n, few, what, show) {
  if (n <= few) return null;
  const button = el("button", {type: "button", class: "field more"}, `Show all ${n.toLocaleString("en")} ${what}`);
  button.addEventListener("click", () => {
    show();
    button.remove();
  });
  return button;
}

/* Calls draw(width) when the element is in the page, and whenever its width changes. What is drawn may change sizes
 * again, so an observer waits for the next frame. */
function onWidth(node, draw) {
  let last = 0;
  const update = () => {
    if (!node.clientWidth || node.clientWidth === last) return;
    last = node.clientWidth;
    draw(last);
  };
  setTimeout(update);
  new ResizeObserver(() => requestAnimationFrame(update)).observe(node);
}

/* ---- Steps ---- */

function sum(list, of) {
  return list.reduce((s, x) => s + (of(x) || 0), 0);
}

/* The microseconds of an op without those of ops that ran within it. */
function ownTime(op) {
  return op.e === undefined ? op.d : op.e;
}

/* Says that numbers are those of rank 0, if there are others. */
function ofRank0(step, word) {
  return step.ranks.length > 1 ? `${word} rank 0` : "";
}

/* Splits the text of a site into its scope and the line of the source. */
function place(site) {
  const at = site.lastIndexOf("called from ");
  if (at < 0) return {scope: site, source: ""};
  return {scope: site.slice(0, at).replace(/, $/, ""), source: site.slice(at + "called from ".length)};
}
