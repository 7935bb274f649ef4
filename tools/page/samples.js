/* The samples of a run: how its text changes from validation to validation. */

function samplesCard(run, several) {
  const shown = run.samples.slice().reverse();
  if (!shown.length) return null;
  const few = 6,
    box = el("div", { class: "samples" });
  const rows = shown.map(s => el("div", { class: "sample" }, el("div", { class: "when" },
    `step ${s.step.toLocaleString("en")}`), el("pre", {}, s.text)));
  const more = el("button", { type: "button", class: "field", onclick: () => (box.append(...rows.slice(few)), more
      .remove()) }, `Show all ${rows.length}`);
  box.append(...rows.slice(0, few));
  return card(several ? `Samples of ${run.name}` : "Samples",
    "What the model continued at validations, newest first.", null, box, rows.length > few ? more : null);
}
