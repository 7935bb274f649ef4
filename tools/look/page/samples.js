/* The samples of a run: how its text changes from validation to validation. */

function samplesCard(run, several) {
  const few = 6, box = el("div", {class: "samples"});
  const rows = run.samples.slice().reverse().map(s => el("div", {class: "sample"},
    el("div", {class: "when"}, `step ${s.step.toLocaleString("en")}`), el("pre", {}, s.text)));
  if (!rows.length) return null;
  box.append(...rows.slice(0, few));
  const more = showAll(rows.length, few, "samples", () => box.append(...rows.slice(few)));
  const title = several ? `Samples of ${run.name}` : "Samples";
  return card(title, "What the model continued at validations, newest first.", null, box, more);
}
