// Sections about a sweep: how good every defence is, where, and how certain that is.

function sweepSections(sweep, number) {
  const id = `sweep-${number}`, measured = {measure: sweep.measures[0] ?? "accuracy", pair: null, of: null};
  const made = sweep.stress ? [worstCases(sweep.stress, id)] : [];
  const head = el("div");
  const undone = sweep.unfinished.length;
  head.append(el("p", {}, `${sweep.cells} cells over ${Object.entries(sweep.axes).map(([key, values]) => `${key} (${values.length})`).join(" × ")}`
    + (undone ? `; ${undone} not finished` : ", all finished") + "."));
  if (undone) head.append(el("details", {}, el("summary", {}, "unfinished cells"), table(["cell", "state", "seed"],
    sweep.unfinished.slice(0, 200).map((cell) => [`${cell.folder} (${Object.values(cell.axes).join(", ")})`, cell.status, String(cell.seed)]))));
  sweep.problems.forEach((text) => head.append(el("p", {class: "problem"}, text)));
  made.push(section(id, `Sweep: ${sweep.name}`, head));
  if (sweep.maps.length) made.push(sweepMaps(sweep, id, measured));
  if (sweep.curves.some((one) => one.rounds.length)) made.push(sweepCurves(sweep, id));
  made.push(section(`${id}-table`, "All results", el("p", {class: "quiet"}, `Accuracy is the ${sweep.averaged} of each run. Mean over seeds ± one standard error.`), table(
    [...Object.keys(sweep.axes), ...sweep.measures, "seeds"],
    sweep.table.map((row) => [...Object.keys(sweep.axes).map((key) => row.axes[key] ?? "–"), ...sweep.measures.map((name) => withError(row.values[name])),
      seedsOf(row)]),
    [...sweep.measures.map((_, i) => Object.keys(sweep.axes).length + i), Object.keys(sweep.axes).length + sweep.measures.length])));
  if (sweep.further.length) made.push(furtherTable(sweep, id));
  return made;
}

// How many seeds have finished, each one with a way to its run: its curves on this page, or its own report.
function seedsOf(row) {
  const done = `${Math.max(0, ...Object.values(row.values).map((one) => one.seeds))} of ${row.seeds}`;
  const ways = row.runs.map((run) => data.runs.some((one) => one.id === run.id) ? el("button", {type: "button", class: "link", onclick: () => showRun(run.id)}, `seed ${run.seed}`)
    : run.report ? el("a", {href: run.report}, `seed ${run.seed}`) : null).filter(Boolean);
  return ways.length ? el("span", {}, done, ": ", ...ways.flatMap((way, i) => i ? [" ", way] : [way])) : done;
}

function showRun(id) {
  showOnly(new Set([id]));
  document.getElementById("curves")?.scrollIntoView();
}

// What `thistle stress` found: the worst case first, then everything that was tried.
function worstCases(stress, id) {
  const share = (value) => value == null ? "–" : `${decimal(100 * value)} %`;
  const row = (one) => [share(one.fraction), one.label, withError(one.accuracy), withError(one.success)];
  const head = ["malicious clients", "attack", "accuracy", "attack success"];
  const tried = stress.candidates.map((one) => [...row(one), percent(one.at_pause), decimal(one.rung), String(one.accuracy?.seeds ?? 0)]);
  return section(`${id}-worst`, `Worst case of ${stress.strategy}: ${stress.suite}`,
    stress.results.map((one) => el("p", {}, el("strong", {}, one.quote))),
    table([...head, "accuracy without attack"], stress.results.map((one) => [...row(one), withError(stress.no_attack.accuracy)]), [2, 3, 4]),
    el("p", {class: "quiet"}, "The worst of all attacks tried, each with all seeds: mean ± one standard error. Worse attacks may exist that were not tried."),
    el("details", {}, el("summary", {}, `all ${tried.length} candidates`), table([...head, "after short run", "rung", "seeds"], tried, [2, 3, 4, 5, 6])),
    stress.left_out.map((text) => el("p", {class: "quiet"}, `Left out: ${text}`)));
}

// Everything else that was measured, in its own table.
function furtherTable(sweep, id) {
  const keys = Object.keys(sweep.axes);
  const plain = (cell) => cell.error == null ? decimal(cell.mean) : `${decimal(cell.mean)} ± ${decimal(cell.error, 2)}`;
  const text = (cell, unit, seeds) => cell == null ? "–"
    : (unit === "share" ? withError(cell) : plain(cell)) + (unit === "rounds" && cell.seeds < seeds ? ` (${cell.seeds} of ${seeds})` : "");
  return section(`${id}-further`, "Further figures", el("p", {class: "quiet"},
    `Clients and classes are from the last evaluation; averages are the ${sweep.averaged}. A lifespan covers only the seeds in which the backdoor fell below 50 %. Mean over seeds ± one standard error.`),
    table([...keys, ...sweep.further.map((one) => one.name)],
      sweep.table.map((row, i) => [...keys.map((key) => row.axes[key] ?? "–"), ...sweep.further.map((one) => text(one.cells[i], one.unit, row.seeds))]),
      sweep.further.map((_, i) => keys.length + i)));
}

function sweepMaps(sweep, id, chosen) {
  const pairs = [...new Set(sweep.maps.map((map) => `${map.rows} × ${map.columns}`))];
  chosen.pair = pairs[0];
  const body = el("div", {class: "cards"}), controls = el("div", {class: "controls"});
  controls.append(
    choice("axes", pairs.map((pair) => [pair, pair]), chosen.pair, (pair) => { chosen.pair = pair; draw(); }),
    sweep.measures.length > 1 ? choice("value", sweep.measures.map((name) => [name, name]), chosen.measure, (name) => { chosen.measure = name; draw(); }) : "");
  const mine = (map) => `${map.rows} × ${map.columns}` === chosen.pair && map.measure === chosen.measure;
  function draw() {
    empty(body);
    const fits = sweep.bests.filter((best) => best.measure === chosen.measure);
    for (const map of sweep.maps.filter(mine)) body.append(mapCard(sweep, map));
    const best = fits.find(mine) ?? fits[0];
    if (best) body.append(bestCard(sweep, best));
  }
  draw();
  return section(`${id}-maps`, "Maps", el("p", {class: "quiet"},
    "Each cell is the worst case over all axes that are not shown: mean over seeds and standard error. Hover to see which case it is."), controls, body);
}

const caseOf = (cell) => Object.entries(cell.case ?? {}).map(([key, value]) => `${key} = ${value}`).join(", ");

function mapCard(sweep, map) {
  const host = el("div", {class: "chart"}), of = Object.values(map.fixed).join(", ");
  const cells = map.cells.map((cell) => ({...cell, ...heat(cell.mean), text: withError(cell) + (cell.significant ? " *" : cell.leads ? " •" : ""),
    tip: [`${map.rows} = ${cell.row}, ${map.columns} = ${cell.column}`, `${map.measure} ${withError(cell)}, ${cell.seeds} seed${cell.seeds > 1 ? "s" : ""}`,
      ...(caseOf(cell) ? [`worst case: ${caseOf(cell)}`] : [])]}));
  new Cells(host, {label: `${map.measure} by ${map.rows} and ${map.columns} ${of}; the numbers are in the table of all results`,
    rows: sweep.axes[map.rows], columns: sweep.axes[map.columns], cells, x: map.columns, y: map.rows});
  const led = map.cells.some((cell) => cell.leads);
  return el("div", {class: "card"}, el("h3", {}, of ? `${of}: worst case` : `${map.measure}: worst case`), host, led ? el("p", {class: "quiet"},
    "• the best defence there; * also significantly better than the next one: two-sided Welch t-test over seeds, p < 0.05 after Holm's correction.") : "");
}

function bestCard(sweep, map) {
  const host = el("div", {class: "chart"}), names = sweep.axes[sweep.strategy];
  const cells = map.cells.map((cell) => ({...cell, fill: look(names.indexOf(cell.best)).colour, ink: inkOn(look(names.indexOf(cell.best)).colour),
    text: `${cell.best}${cell.significant ? " *" : ""}\n${withError(cell)}`,
    tip: [`${map.rows} = ${cell.row}, ${map.columns} = ${cell.column}`, `${cell.best} ${withError(cell)}`,
      ...(cell.second ? [`next: ${cell.second} ${percent(cell.second_mean)}`] : []),
      cell.p == null ? "too few seeds for a test" : `p = ${decimal(cell.p, 2)}, corrected ${decimal(cell.corrected, 2)}`]}));
  new Cells(host, {label: `the best defence by ${map.rows} and ${map.columns}; the numbers are in the table of all results`, rows: sweep.axes[map.rows], columns: sweep.axes[map.columns],
    cells, x: map.columns, y: map.rows});
  const untested = map.cells.filter((cell) => cell.second && cell.p == null).length;
  return el("div", {class: "card"}, el("h3", {}, `The best defence by its worst case: ${map.measure}`), host, el("p", {class: "quiet"},
    "* better than the next one: two-sided Welch t-test over seeds, p < 0.05 after Holm's correction for the cells of this map."
    + (untested ? ` In ${untested} of ${map.cells.length} cells the seeds do not allow a test.` : "")));
}

function sweepCurves(sweep, id) {
  const main = sweep.strategy ?? Object.keys(sweep.axes)[0], others = Object.keys(sweep.axes).filter((key) => key !== main);
  const usual = sweep.curves.findLast((one) => one.rounds.length);
  const chosen = Object.fromEntries(others.map((key) => [key, usual.axes[key]]));
  const off = new Set(), host = el("div", {class: "chart"});
  const chart = new Lines(host, {label: "accuracy over rounds, mean over seeds", format: percent, height: 360});
  const draw = () => chart.set(sweep.curves.filter((one) => others.every((key) => one.axes[key] === chosen[key])).map((one) => ({
    id: one.axes[main], name: one.axes[main], hidden: off.has(one.axes[main]), ...look(sweep.axes[main].indexOf(one.axes[main])),
    x: one.rounds, y: one.mean, low: one.low, high: one.high})));
  const controls = el("div", {class: "controls"}, others.filter((key) => sweep.axes[key].length > 1).map((key) =>
    choice(key, sweep.axes[key].map((value) => [value, value]), chosen[key], (value) => { chosen[key] = value; draw(); })));
  const chips = el("div", {class: "key"}, sweep.axes[main].map((name, i) => {
    const own = look(i);
    return el("label", {}, check("", true, (on) => { on ? off.delete(name) : off.add(name); draw(); }),
      el("i", {class: "swatch", style: {borderTopColor: own.colour, borderTopStyle: own.dash === "dashdot" ? "dashed" : own.dash, verticalAlign: "middle", marginRight: ".4rem"}}), name);
  }));
  draw();
  return section(`${id}-curves`, "Curves", controls, el("div", {class: "card"}, chips, host,
    el("p", {class: "quiet"}, "The line is the mean over seeds; the band is one standard error either side."), numbers(() => chart)));
}
