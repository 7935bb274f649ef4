/* Puts the page together from the data that the program has written into it. */

function stepFacts(step) {
  const r = step.ranks[0], forward = r.ops.filter(o => !o.b).length;
  return factList([
    ["step", duration(r.seconds)], ["ops", `${forward} forward, ${r.ops.length - forward} backward`],
    ["ranks", String(r.ranks)], ["device", r.device], ["threads", String(r.threads)],
  ]);
}

function stepSections(step) {
  const pair = [timesCard(step), peakCard(step)].filter(Boolean);
  return [el("div", {class: "columns"}, ...pair), memoryCard(step), ranksCard(step), tapeCard(step)].filter(Boolean);
}

function main() {
  const data = JSON.parse(document.getElementById("data").textContent), page = document.getElementById("page");
  const runs = data.runs || [], one = runs.length === 1, step = data.step;
  const title = one ? runs[0].name : data.title;
  page.append(el("header", {}, el("h1", {}, title), one ? factList(runs[0].facts) : step ? stepFacts(step) : null));
  if (runs.length) page.append(...runSections(runs));
  page.append(...runs.map(run => samplesCard(run, !one)).filter(Boolean));
  if (step) page.append(...stepSections(step));
  page.append(el("footer", {}, `Written by tapegrad ${data.version}.`));
}

main();
