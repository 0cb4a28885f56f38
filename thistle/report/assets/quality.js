// What clinicians ask of a model at the last evaluation: one table per run, one line per class, and sites' own tests.

const MOST_TAKEN = 20;   // classes: a wider confusion matrix cannot be read

function quality() {
  const place = section("quality", "Classes in detail, last evaluation");
  let drawn = "";
  return {section: place, again() {
    const runs = data.runs.filter((run) => !hidden.has(run.id) && run.quality.sensitivity?.length);
    place.hidden = runs.length === 0;
    const now = JSON.stringify(runs.map((run) => [run.id, run.quality]));
    if (now === drawn) return;
    drawn = now;
    place.replaceChildren(place.firstElementChild, ...runs.flatMap((run) => [classTable(run), ownTests(run)].filter(Boolean)));
  }};
}

function classTable(run) {
  const {sensitivity, specificity, class_auc: aucs, confusion} = run.quality;
  const taken = confusion?.length && confusion.length <= MOST_TAKEN ? confusion : null;
  const head = [run.name, "sensitivity", "specificity", "AUC", ...(taken ? taken.map((_, i) => `predicted ${i}`) : [])];
  const rows = sensitivity.map((value, i) => [`class ${i}`, percent(value), percent(specificity?.[i]), percent(aucs?.[i]), ...(taken?.[i].map(String) ?? [])]);
  return table(head, rows, head.map((_, i) => i).slice(1));
}

// A site's own test of the model, on data that it held out.
function ownTests(run) {
  const rows = (run.quality.site_scores ?? []).map((site) => [`client ${site.client}`, percent(site.accuracy), decimal(site.loss), String(site.examples)]);
  return rows.length ? table([`${run.name}: on the sites' own data, as they report`, "accuracy", "loss", "examples"], rows, [1, 2, 3]) : null;
}
