// One run's clients over its rounds, and their scores.

const VERDICTS = ["not asked", "accepted", "filtered", "rejected", "failed", "almost no weight"];
const JUDGED = ["not asked", "honest, accepted", "attack, excluded", "attack, accepted", "honest, excluded", "failed"];

const {Uint8NDArray} = Bokeh.require("core/util/ndarray");

function clients(load) {
  const shown = {run: null, colour: "verdict", order: "truth", map: null, drawn: ""};
  const body = el("div"), controls = el("div", {class: "controls"});
  const place = section("clients", "Clients", controls, body);
  let parts = [], busy = false, waiting = false;

  // One at a time: rounds may arrive faster than a map is drawn.
  async function again(force = false) {
    if (busy) { waiting = true; return; }
    busy = true;
    try {
      await update(force);
    } finally {
      busy = false;
    }
    if (waiting) { waiting = false; again(); }
  }

  function drawControls(known) {
    const secret = known.find((run) => run.id === shown.run).deployed;
    const now = JSON.stringify([secret, ...known.map((run) => [run.id, run.name])]);
    if (now === controls.dataset.drawn) return;
    controls.dataset.drawn = now;
    empty(controls).append(choice("run", known.map((run) => [run.id, run.name]), shown.run, (id) => { shown.run = id; again(true); }));
    if (!secret) controls.append(
      choice("colour by", [["verdict", "verdict"], ["truth", "right or wrong"]], shown.colour, (kind) => { shown.colour = kind; draw(); }),
      choice("order by", [["truth", "truth"], ["id", "number"]], shown.order, (kind) => { shown.order = kind; draw(); }));
  }

  async function update(force) {
    const known = data.runs.filter((run) => column(run, "round").length);
    if (!known.some((run) => run.id === shown.run)) {
      const filtered = (run) => sum(column(run, "filtered"));   // the most to see
      shown.run = [...known].sort((a, b) => filtered(b) - filtered(a))[0]?.id ?? null;
    }
    place.hidden = shown.run === null;
    if (place.hidden) return;
    drawControls(known);
    const run = known.find((one) => one.id === shown.run);
    const now = `${run.id} ${last(column(run, "round"))} ${run.status}`;
    if (now === shown.drawn && !force) return;
    shown.drawn = now;
    const loaded = await load(run.id);
    if (!loaded) shown.drawn = "";
    if (!loaded || shown.run !== run.id) return;
    shown.map = {...loaded, codes: await unpack(loaded.cells, Uint8Array), why: await unpack(loaded.reasons, Uint8Array),
      attacked: await unpack(loaded.attacks, Uint8Array), marks: loaded.scores ? await unpack(loaded.scores, Float32Array) : null,
      cuts: loaded.thresholds ? await unpack(loaded.thresholds, Float32Array) : null};
    draw();
  }

  function draw() {
    parts.forEach((part) => part.remove());
    parts = [];
    empty(body);
    const map = shown.map;
    if (!map || map.rounds.length === 0) return body.append(el("p", {class: "quiet"}, "No verdicts yet."));
    const host = el("div", {class: "chart", id: "map"}), bad = new Set(map.malicious ?? []);
    const truth = data.runs.find((run) => run.id === shown.run).deployed ? "On real nodes, only the nodes know who was malicious."
      : map.malicious === null ? "The run records who was malicious when it ends."
      : map.malicious.length ? "The strip on the left shows who was malicious." : "Nobody was malicious in this run.";
    const part = map.clients.length < map.total ? ` ${map.clients.length} of ${map.total} clients are shown.` : "";
    const damaged = map.damaged ? ` ${map.damaged} damaged lines of verdicts.jsonl were skipped.` : "";
    const judged = shown.colour === "truth" && map.malicious !== null;
    const names = judged ? JUDGED : VERDICTS;
    const shades = (judged ? ["accepted", "right-out", "missed", "wronged", "failed"] : ["accepted", "filtered", "rejected", "failed", "weightless"]).map(shade);
    const codes = judged ? judge(map) : map.codes;
    const counts = names.map(() => 0);
    for (const code of codes) counts[code]++;
    body.append(el("div", {class: "card wide"}, el("h3", {}, "Each client's outcome in every round"),
      el("p", {class: "quiet"}, truth + part + damaged),
      el("div", {class: "key"}, names.slice(1).map((name, i) => el("span", {}, el("i", {class: "swatch block", style: {background: shades[i]}}), `${name} ${counts[i + 1]}`)),
        map.malicious?.length ? ["honest", "malicious"].map((name) => el("span", {}, el("i", {class: "swatch block", style: {background: shade(name)}}), `${name} client`)) : null),
      host));
    parts.push(drawMap(host, map, codes, bad, shades, judged));
    const row = el("div", {class: "cards", style: {marginTop: "1rem"}});
    body.append(row);
    parts.push(...drawScores(row, map.distribution));
  }

  function drawMap(host, map, codes, bad, shades, judged) {
    const wide = map.rounds.length, order = [...map.clients.keys()];
    if (shown.order === "truth" && bad.size) order.sort((a, b) => bad.has(map.clients[b]) - bad.has(map.clients[a]) || a - b);
    const high = order.length, image = new Uint8NDArray(wide * high, [high, wide]);
    order.forEach((own, i) => image.set(codes.subarray(own * wide, (own + 1) * wide), (high - 1 - i) * wide));
    const strip = bad.size ? Math.max(0.6, wide * 0.012) : 0;
    const height = Math.min(620, Math.max(180, 70 + 14 * high));
    const chart = new Chart(host, {label: "map of clients over rounds, coloured by each reply's outcome", height,
      x_range: [0.5 - strip * 1.6, wide + 0.5], y_range: [0, high], x_axis_label: "round", y_axis_label: map.sites ? "site" : "client", tools: "pan,box_zoom,wheel_zoom,reset,save"});
    const f = chart.figure;
    chart.countRounds();
    f.xgrid.visible = false; f.ygrid.visible = false;
    const mapper = new Bokeh.LinearColorMapper({palette: ["rgba(0,0,0,0)", ...shades], low: -0.5, high: shades.length + 0.5});
    const cells = f.image({image: [image], x: 0.5, y: 0, dw: wide, dh: high, color_mapper: mapper});
    if (strip) {
      const top = order.map((_, i) => high - i), colour = order.map((own) => shade(bad.has(map.clients[own]) ? "malicious" : "honest"));
      f.quad({left: 0.5 - strip * 1.5, right: 0.5 - strip * 0.4, top, bottom: top.map((y) => y - 1), fill_color: colour, line_color: null});
    }
    const step = Math.max(1, Math.ceil(high / 24)), ticks = order.map((_, i) => i).filter((i) => i % step === 0);
    f.yaxis.ticker = new Bokeh.FixedTicker({ticks: ticks.map((i) => high - i - 0.5)});
    f.yaxis.major_label_overrides = new Map(ticks.map((i) => [high - i - 0.5, called(map, order[i])]));
    if (map.rounds[0] !== 1 || map.rounds.at(-1) !== wide) f.xaxis.axis_label = "round (recorded ones)";
    chart.hover([cells], (_, at) => {
      const x = Math.floor(at.x - 0.5), own = order[high - 1 - Math.floor(at.y)], cell = own * wide + x, client = map.clients[own];
      if (own === undefined || x < 0 || x >= wide) return el("div");
      const kind = map.malicious === null ? "" : bad.has(client) ? ", malicious" : ", honest";
      const mark = map.marks?.[cell], cut = map.cuts?.[cell], why = map.notes[map.why[cell]];
      const known = (value) => value !== undefined && !Number.isNaN(value);
      return tip([`${map.sites?.[own] ? `${map.sites[own]}, ` : ""}client ${client}${kind}, round ${map.rounds[x]}`, (judged ? JUDGED[codes[cell]] + ": " : "") + VERDICTS[map.codes[cell]] + (why ? ` by ${why}` : ""),
        ...(known(mark) ? [`score ${decimal(mark, 4)}${known(cut) ? `, threshold ${decimal(cut, 4)}` : ""}`] : [])]);
    });
    host.dataset.cells = wide * high;
    return chart;
  }

  return {section: place, again, draw};
}

// A client's site; if a site has several clients, also the client's number.
function called(map, own) {
  const site = map.sites?.[own], number = String(map.clients[own]);
  if (!site) return number;
  const name = site.length > 24 ? `${site.slice(0, 23)}…` : site;
  return map.sites.filter((other) => other === site).length > 1 ? `${name} ${number}` : name;
}

// 1 and 2 are right, 3 and 4 wrong, 5 failed; an attacker whose attack is off counts as honest.
function judge(map) {
  return map.codes.map((code, cell) => {
    const attack = map.attacked[cell];
    return code === 0 ? 0 : code === 4 ? 5 : code === 1 ? (attack ? 3 : 1) : (attack ? 2 : 4);
  });
}

function drawScores(row, found) {
  if (!found) return [];
  const names = Object.keys(found.groups), colour = (name) => shade(name === "malicious" ? "malicious" : "honest");
  const cut = found.threshold, ink = shade("ink");
  const key = () => el("div", {class: "key"}, names.map((name) => el("span", {}, el("i", {class: "swatch block", style: {background: colour(name)}}),
    `${name} (${found.groups[name].replies} replies)`)),
    cut ? el("span", {}, el("i", {class: "swatch", style: {borderTopColor: ink, borderTopStyle: "dotted"}}), "threshold") : null);
  const one = el("div", {class: "chart", id: "scores"}), two = el("div", {class: "chart"});
  const kept = cut ? ` The filter keeps what is ${cut.keeps} its threshold; the dotted line is the median threshold` : "";
  row.append(card("Scores, all rounds", key(), one, el("p", {class: "quiet"}, `The outermost bars also count scores beyond the ends.${kept && `${kept} of all rounds.`}`)),
    card("Scores over rounds", key(), two, el("p", {class: "quiet"}, `The line is the median; the band holds 80 % of the replies.${kept && `${kept} of each round.`}`)));
  const bars = new Chart(one, {label: "histogram of the scores of honest and malicious replies", height: 260, x_axis_label: "score", y_axis_label: "share of replies"});
  bars.figure.yaxis.formatter = new Bokeh.NumeralTickFormatter({format: "0 %"});
  for (const name of names) {
    const shares = found.groups[name].shares, left = found.edges.slice(0, -1), right = found.edges.slice(1);
    const drawn = bars.figure.quad({left, right, top: shares, bottom: 0, fill_color: colour(name), fill_alpha: 0.55, line_color: colour(name)});
    bars.hover([drawn], (_, at) => tip([name, `score ${decimal(left[at.index])} to ${decimal(right[at.index])}: ${percent(shares[at.index])}`]));
  }
  if (cut && cut.typical >= found.edges[0] && cut.typical <= found.edges.at(-1)) bars.figure.add_layout(
    new Bokeh.Span({location: cut.typical, dimension: "height", line_color: ink, line_dash: "dotted", line_width: 2}));
  const lines = new Lines(two, {label: "median and spread of the scores in each round", height: 260, y: "score"});
  lines.set(names.map((name) => ({id: name, name, colour: colour(name), dash: name === "malicious" ? "dashed" : "solid", x: found.groups[name].rounds,
    y: found.groups[name].middle, low: found.groups[name].low, high: found.groups[name].high}))
    .concat(cut ? [{id: "threshold", name: "threshold", colour: ink, dash: "dotted", reference: true, x: cut.rounds, y: cut.middle}] : []));
  return [bars, lines];
}
