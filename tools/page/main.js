/* Puts the page together from the data that the program has written into it. */

function main() {
  const data = JSON.parse(document.getElementById("data").textContent),
    page = document.getElementById("page");
  const runs = data.runs || [],
    one = runs.length === 1;
  page.append(el("header", {}, el("h1", {}, one && data.kind === "compare" ? runs[0].name : data.title), one ?
    runHeader(runs[0], 0, false) : null,
    data.step && !one ? stepFacts(data.step) : null));
  if (runs.length) page.append(...runSections(runs));
  for (const run of runs) page.append(samplesCard(run, !one) || "");
  if (data.step) page.append(...stepSections(data.step));
  page.append(el("footer", {}, `Written by tapegrad ${data.version}.`));
}

function stepFacts(step) {
  const r = step.ranks[0],
    forward = r.ops.filter(o => !o.b).length;
  const facts = [["step", duration(r.seconds)], ["ops", `${forward} forward, ${r.ops.length - forward} backward`], [
    "ranks", r.ranks], ["device", r.device], ["threads", r.threads]];
  return el("dl", { class: "facts" }, ...facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, String(
    v)))));
}

function stepSections(step) {
  const pair = [timesCard(step), peakCard(step)].filter(Boolean);
  return [el("div", { class: "columns" }, ...pair), memoryCard(step), ranksCard(step), tapeCard(step)].filter(
  Boolean);
}

main();
