// Sections about runs: the overview, curves, detection, accuracy by class and under attack, cost, settings.

const hidden = new Set();      // ids of runs that the reader has switched off
const places = new Map();      // id → place in the colours, which stays when runs come and go

function style(run) {
  if (!places.has(run.id)) places.set(run.id, places.size);
  return {id: run.id, name: run.name, hidden: hidden.has(run.id), ...look(places.get(run.id))};
}

const column = (run, name) => run.columns[name] ?? [];
const last = (values) => values.findLast((value) => value != null);
const some = (runs, name) => runs.some((run) => column(run, name).length > 0);

// The mean over the last k evaluations, which a run reports when it has ended.
function meanOfLast(run) {
  const {final_accuracy: mean, evaluations_averaged: k} = run.summary;
  return mean == null ? "–" : percent(mean) + (k == null ? "" : ` (k = ${k})`);
}

function state(run) {
  return el("span", {class: `state ${run.status.replace(/[^a-z]/g, "")}`, title: run.message}, run.status);
}

// What the runs show, in a sentence for each attack: how much of the accuracy which strategy keeps.
function finding(runs) {
  const under = new Map();
  for (const run of runs) {
    const x = run.experiment, accuracy = last(column(run, "accuracy"));
    if (run.deployed || accuracy == null || !x["attack.fraction"] || (x["attack.kind"] ?? "none") === "none") continue;
    const attack = `With ${+(100 * x["attack.fraction"]).toFixed(1)}\u00a0% malicious clients (${x["attack.kind"]})`;
    under.set(attack, [...(under.get(attack) ?? []), [accuracy, x["strategy.name"] ?? run.name, run.name]]);
  }
  return [...under].slice(0, 4).map(([attack, kept]) => {
    const alone = new Set(kept.map((one) => one[1])).size === kept.length;
    const told = kept.sort((a, b) => b[0] - a[0]).slice(0, 5).map(([accuracy, strategy, name], i) =>
      `${alone ? strategy : name} ${i ? "" : "keeps "}${percent(accuracy)}`);
    return el("p", {class: "headline"}, `${attack}, ${told.join("; ")}.`);
  });
}

function overview(runs) {
  const head = ["run", "state", "rounds", "task", "strategy", "attack", "last", "best", "mean of the last k", "weakest under attack", "precision: filter, whole", "recall: filter, whole", "s / round", "sent to server"];
  const rows = runs.map((run) => {
    const x = run.experiment, found = run.summary.detection ?? {filter: detected(run, "filter").total, whole: detected(run, "whole").total};
    const robust = Object.entries(run.withstood).filter(([name]) => name !== "natural").sort((a, b) => a[1] - b[1])[0];
    const seconds = column(run, "seconds").slice(1).sort((a, b) => a - b);
    return [run.name, state(run), progress(run), x["task.name"] ?? "–", x["strategy.name"] ?? "–",
      run.deployed ? "unknown" : x["attack.kind"] === "none" || !x["attack.kind"] ? "none" : `${x["attack.kind"]} ${percent(x["attack.fraction"])}`,
      percent(last(column(run, "accuracy"))), percent(best(column(run, "accuracy"))), meanOfLast(run),
      robust ? `${robust[0]} ${percent(robust[1])}` : "–", both(found, "precision"), both(found, "recall"),
      decimal(seconds[Math.floor(seconds.length / 2)]), size(sum(column(run, "bytes_up")))];
  });
  const notes = runs.flatMap((run) => [...(run.status === "failed" || run.status === "stopped" ? [run.message] : []), ...run.problems]
    .filter(Boolean).map((text) => el("p", {class: "problem"}, `${run.name}: ${text}`)));
  const bare = live && !some(runs, "round") ? [el("p", {class: "quiet"}, "No round has ended yet; the charts appear after the first one.")] : [];
  return section("overview", "Overview", ...finding(runs), ...bare, known(head, rows, (i) => i === 2 || i > 5), further(runs), ...notes);
}

// Real hospitals, by name: each one's outcomes, and which ones somebody should ask.
function sites() {
  const body = el("div"), place = section("sites", "Sites", body);
  return {section: place, again() {
    const runs = data.runs.filter((run) => !hidden.has(run.id) && Object.keys(run.sites).length);
    place.hidden = runs.length === 0;
    empty(body).append(...runs.flatMap((run) => siteTable(run, runs.length > 1)));
  }};
}

function siteTable(run, named) {
  const head = ["site", "rounds", "used", "left out", "no answer", "mostly left out by", "last reason"];
  const rows = Object.entries(run.sites).map(([name, said]) => [name, said.rounds, said.rounds - said.left_out - said.silent,
    said.left_out, said.silent, said.step || "–", said.reason || "–"].map(String));
  return [named ? el("h3", {}, run.name) : null, ...run.pointed_out.map((text) => el("p", {class: "finding"}, text)),
    table(head, rows, [1, 2, 3, 4])].filter(Boolean);
}

// A table without the columns that are empty in every row.
function known(head, rows, isNumber) {
  const kept = head.map((_, i) => i).filter((i) => rows.some((row) => row[i] !== "–"));
  return table(kept.map((i) => head[i]), rows.map((row) => kept.map((i) => row[i])), kept.map((i, at) => isNumber(i) ? at : -1));
}

// What reviewers ask for besides accuracy, at the last evaluation; nothing if no run has measured it.
function further(runs) {
  const head = ["run", "macro-F1", "AUC", "calibration error", "worst class", "worst client", "10th percentile of clients", "mean of clients", "backdoor success", "backdoor lifespan", "defence, s / round"];
  const rows = runs.map((run) => {
    const classes = run.by_class.map((value, i) => [value, i]).filter(([value]) => value != null).sort((a, b) => a[0] - b[0])[0];
    const client = (name) => percent(last(column(run, `client_accuracy.${name}`)));
    const defence = column(run, "seconds_defence").filter((value) => value != null).sort((a, b) => a - b);
    const {macro_f1: f1, auc, calibration_error: error} = run.quality;
    return [run.name, percent(f1), percent(auc), percent(error), classes ? `${percent(classes[0])} (class ${classes[1]})` : "–", client("worst"), client("p10"), client("mean"),
      percent(last(column(run, "attack_success"))), lifespan(run.summary), decimal(run.summary.seconds_defence ?? defence[Math.floor(defence.length / 2)])];
  });
  return rows.some((row) => row.slice(1).some((cell) => cell !== "–")) ? known(head, rows, (i) => i > 0) : null;
}

// How far it is and, while it runs, how long it will still take.
function progress(run) {
  const done = last(column(run, "round")) ?? 0, all = run.experiment.rounds;
  const seconds = column(run, "seconds").slice(1).filter((value) => value != null).sort((a, b) => a - b);
  const left = run.status === "running" && seconds.length && all > done ? (all - done) * seconds[Math.floor(seconds.length / 2)] : null;
  return `${done} / ${all ?? "?"}${left == null ? "" : `, ${duration(left)} left`}`;
}

function duration(seconds) {
  const minutes = Math.round(seconds / 60);
  return seconds < 90 ? `${Math.max(1, Math.round(seconds))}\u00a0s` : minutes < 90 ? `${minutes}\u00a0min` : `${decimal(minutes / 60, 2)}\u00a0h`;
}

function lifespan({backdoor_lifespan: rounds, backdoor_lifespan_reason: reason}) {
  return rounds != null ? `${rounds} rounds` : reason ?? "–";
}

const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
const best = (values) => values.reduce((high, value) => value != null && (high == null || value > high) ? value : high, null);

function running(values) {
  let total = 0;
  return values.map((value) => { total += value ?? 0; return total; });
}

// A run's position on the x axis in each round.
const ALONG = {
  round: ["round", (run) => column(run, "round")],
  seconds: ["seconds", (run) => running(column(run, "seconds"))],
  bytes: ["MB sent by clients", (run) => running(column(run, "bytes_up")).map((bytes) => bytes / 1e6)],
};

function along(run, kind, values) {
  const known = values.map((value, i) => value != null ? i : -1).filter((i) => i >= 0);
  const x = ALONG[kind][1](run);
  return {...style(run), x: known.map((i) => x[i]), y: known.map((i) => values[i])};
}

// What guessing would reach, if all runs have the same classes.
function chance(kind) {
  const classes = new Set(data.runs.map((run) => run.by_class.length));
  const ends = data.runs.filter((run) => !hidden.has(run.id)).flatMap((run) => along(run, kind, column(run, "accuracy")).x);
  if (classes.size !== 1 || classes.has(0) || !ends.length) return [];
  const level = 1 / [...classes][0], x = ends.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
  return [{id: "chance", name: "guessing", colour: shade("quiet"), dash: "solid", reference: true, x, y: [level, level]}];
}

// A card with one line chart whose kind the reader can change; `again` draws what is new.
function lineCard(title, options, series) {
  const host = el("div", {class: "chart"});
  let chart = null;
  const made = {
    again(fresh = false) {
      if (fresh && chart) { chart.remove(); chart = null; empty(host); }
      const lines = series();
      const bare = lines.every((one) => one.reference || one.x.length === 0);
      made.card.hidden = bare && !chart;
      if (made.card.hidden) return;
      chart ??= new Lines(host, {label: `${title}: a line chart; the numbers are below`, ...options()});
      chart.set(lines);
    },
  };
  made.card = card(title, host, numbers(() => chart));
  return made;
}

// A failed defence may have a loss of a million next to losses of one.
function diverged() {
  const losses = data.runs.flatMap((run) => column(run, "loss")).filter((value) => value > 0);
  return losses.length > 0 && losses.reduce((a, b) => Math.max(a, b)) > 1000 * losses.reduce((a, b) => Math.min(a, b));
}

function curves() {
  const shown = {along: "round", loss: "loss", log: diverged(), attack: "", client: "worst"};
  const accuracy = lineCard("Accuracy on the test set", () => ({x: ALONG[shown.along][0], format: percent}),
    () => [...data.runs.map((run) => along(run, shown.along, column(run, "accuracy"))), ...chance(shown.along)]);
  const loss = lineCard("Loss", () => ({x: ALONG[shown.along][0], y_axis_type: shown.log ? "log" : "linear"}),
    () => data.runs.map((run) => along(run, shown.along, column(run, shown.loss))));
  const attacks = [...new Set(data.runs.flatMap((run) => Object.keys(run.robust)))];
  shown.attack = attacks.includes("pgd20") ? "pgd20" : attacks[0];
  const robust = attacks.length === 0 ? null : lineCard("Accuracy on adversarial examples", () => ({x: ALONG[shown.along][0], format: percent}),
    () => data.runs.map((run) => along(run, shown.along, run.robust[shown.attack] ?? [])));
  const success = !some(data.runs, "attack_success") ? null : lineCard("Backdoor success", () => ({x: ALONG[shown.along][0], format: percent, whole: true}),
    () => data.runs.map((run) => along(run, shown.along, column(run, "attack_success"))));
  const clients = !some(data.runs, "client_accuracy.worst") ? null : lineCard("Honest clients, each on its own test split", () => ({x: ALONG[shown.along][0], format: percent}),
    () => data.runs.map((run) => along(run, shown.along, column(run, `client_accuracy.${shown.client}`))));
  const all = [accuracy, loss, clients, robust, success].filter(Boolean);
  const change = (key) => (value) => { shown[key] = value; all.forEach((one) => one.again(true)); };
  const controls = el("div", {class: "controls"},
    choice("along", [["round", "rounds"], ["seconds", "time"], ["bytes", "traffic"]], "round", change("along")),
    choice("loss", [["loss", "on the test set"], ["train_loss", "in training"]], "loss", change("loss")),
    check("logarithmic", shown.log, change("log")),
    clients ? choice("clients", [["worst", "worst"], ["p10", "10th percentile"], ["mean", "mean"]], "worst", change("client")) : null,
    robust ? choice("adversarial examples", attacks.map((attack) => [attack, attack]), shown.attack, change("attack")) : null);
  return {
    section: section("curves", "Accuracy and loss", controls, el("div", {class: "cards"}, all.map((one) => one.card))),
    again: () => all.forEach((one) => one.again()),
  };
}

// For the filter alone and for the whole defence; runs of older versions have only the whole.
function both(found, kind) {
  const parts = [found.filter?.[kind], found.whole?.[kind]];
  return parts.every((value) => value == null) ? "–" : parts.map((value) => percent(value)).join(", ");
}

// Precision and recall of excluding attackers, over the last rounds.
function detected(run, part, window = Infinity) {
  const names = ["true_positive", "false_positive", "false_negative", "true_negative"];
  const counts = names.map((name) => column(run, `${part}.${name}`)), rounds = column(run, "round").length;
  const totals = [0, 0, 0, 0];
  const over = rounds ? [...Array(rounds).keys()].map((i) => {
    counts.forEach((values, k) => { totals[k] += (values[i] ?? 0) - (i >= window ? values[i - window] ?? 0 : 0); });
    return scores(...totals);
  }) : [];
  return {over, total: over.at(-1) ?? {}};
}

function scores(tp, fp, fn, tn) {
  const share = (part, whole) => whole > 0 ? part / whole : null;
  return {precision: share(tp, tp + fp), recall: share(tp, tp + fn), f1: share(2 * tp, 2 * tp + fp + fn), honest: share(fp, fp + tn)};
}

function detection() {
  const shown = {window: "10", part: "whole"};
  const kinds = [["precision", "Precision: excluded replies that were attacks"], ["recall", "Recall: attacks that were excluded"],
    ["honest", "Honest replies that were excluded"]];
  const all = kinds.map(([kind, title]) => lineCard(title, () => ({format: percent, height: 240, whole: true}), () => data.runs.map((run) =>
    along(run, "round", detected(run, shown.part, Number(shown.window)).over.map((one) => one[kind])))));
  const change = (key) => (value) => { shown[key] = value; all.forEach((one) => one.again()); };
  const controls = el("div", {class: "controls"},
    choice("of", [["whole", "the whole defence"], ["filter", "the filter alone"]], "whole", change("part")),
    choice("over", [["1", "each round"], ["10", "the last 10 rounds"], ["Infinity", "all rounds so far"]], "10", change("window")));
  const place = section("detection", "Detection", el("p", {class: "quiet"}, "Excluded means filtered, rejected by the guard, or given almost no weight. No line: nothing to divide by."), controls,
    el("div", {class: "cards three"}, all.map((one) => one.card)));
  return {section: place, again() {
    place.hidden = data.runs.every((run) => run.deployed);
    if (!place.hidden) all.forEach((one) => one.again());
  }};
}

const robustBars = () => bars("robust", "Accuracy under attack, final model", "accuracy of the final models under each attack", (run) => run.withstood);
const classBars = () => bars("classes", "Accuracy by class, last evaluation", "accuracy of each class at the last evaluation",
  (run) => Object.fromEntries(run.by_class.map((value, i) => [`class ${i}`, value]).filter(([, value]) => value != null)));

// A section with bars: `valuesOf` gives a run's values by category.
function bars(id, title, label, valuesOf) {
  const host = el("div", {class: "chart"}), place = section(id, title, card("", host));
  let chart = null;
  return {section: place, again() {
    const runs = data.runs.filter((run) => !hidden.has(run.id) && Object.keys(valuesOf(run)).length);
    const categories = [...new Set(data.runs.flatMap((run) => Object.keys(valuesOf(run))))];
    place.hidden = categories.length === 0;
    const drawn = JSON.stringify([runs.map((run) => [run.id, valuesOf(run)])]);
    if (place.hidden || drawn === host.dataset.drawn) return;
    chart?.remove();
    empty(host);
    host.dataset.drawn = drawn;
    chart = new Bars(host, {label, categories, series: runs.map((run) => ({...style(run), values: valuesOf(run)}))});
  }};
}

function cost() {
  const shown = {total: "each"};
  const values = (run, name, unit) => (shown.total === "each" ? column(run, name) : running(column(run, name))).map((value) => value / unit);
  const measures = [["seconds", "Seconds", 1], ["seconds_defence", "Seconds in the defence", 1], ["bytes_up", "MB from clients to the server", 1e6], ["bytes_down", "MB from the server to clients", 1e6]];
  const same = (name) => data.runs.every((run) => new Set(column(run, name).filter((value) => value != null)).size < 2);
  const all = measures.map(([name, title, unit]) => lineCard(title, () => ({height: 240}),
    () => same(name) ? [] : data.runs.map((run) => along(run, "round", values(run, name, unit)))));
  const told = el("p");
  const tell = () => told.replaceChildren(measures.filter(([name]) => same(name) && some(data.runs, name)).map(([name, title]) => steady(name, title)).join(" "));
  const controls = el("div", {class: "controls"}, choice("show", [["each", "each round"], ["total", "in total"]], "each",
    (value) => { shown.total = value; all.forEach((one) => one.again()); }));
  return {
    section: section("cost", "Time and traffic", controls, told, el("div", {class: "cards three"}, all.map((one) => one.card))),
    again: () => { tell(); all.forEach((one) => one.again()); },
  };
}

// What is the same in every round is a number, not a chart.
function steady(name, title) {
  const text = (run) => { const all = column(run, name), each = last(all); return name.startsWith("bytes") ? size(each) : decimal(each); };
  const each = new Set(data.runs.map(text));
  return `${title.replace(/^MB /, "Sent ")}: ${each.size === 1 ? [...each][0] : data.runs.map((run) => `${run.name} ${text(run)}`).join(", ")} in every round.`;
}

function settings() {
  const body = el("div");
  let only = data.runs.length > 1, drawn = "";
  const again = () => {
    const runs = data.runs.filter((run) => !hidden.has(run.id));
    const now = JSON.stringify([only, runs.map((run) => [run.name, run.experiment])]);
    if (now === drawn) return;
    drawn = now;
    const keys = [...new Set(runs.flatMap((run) => Object.keys(run.experiment)))];
    const values = (key) => runs.map((run) => run.experiment[key] === undefined ? "–" : String(run.experiment[key]));
    const differs = (key) => new Set(values(key)).size > 1;
    const row = (key) => el("tr", {}, el("th", {scope: "row"}, key),
      values(key).map((value) => el("td", {class: differs(key) ? "differs longer" : "longer"}, value)));
    const shown = keys.filter((key) => !only || differs(key));
    const parts = runs.length > 1 ? [shown] : Object.values(Object.groupBy(shown, (key) => key.includes(".") ? key.split(".")[0] : ""));
    const head = runs.length > 1 ? el("thead", {}, el("tr", {}, el("th", {}, "key"), runs.map((run) => el("th", {scope: "col"}, run.name)))) : null;
    empty(body).append(el("div", {class: runs.length > 1 ? "scroll" : "flow", tabindex: "0", role: "region", "aria-label": "settings"},
      parts.map((part) => el("table", {}, head, el("tbody", {}, part.map(row))))));
  };
  const controls = data.runs.length > 1 ? el("div", {class: "controls"}, check("only differences", only, (on) => { only = on; again(); })) : null;
  return {section: section("settings", "Settings", controls, body), again};
}
