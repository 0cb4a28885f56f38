// Builds the page from its own data or from the server that sent it, and keeps it up to date.

const main = document.getElementById("main"), chips = document.getElementById("chips");
const live = document.body.dataset.live === "yes";
let parts = [];

const FEW = 8;    // more lines than this cannot be told apart
const MANY = 12;   // more buttons than this are folded away
let unfolded = false;

// With many runs, first show those that changed last.
let introduced = false;
function introduce() {
  if (introduced || data.runs.length === 0) return;
  introduced = true;
  [...data.runs].sort((a, b) => b.changed - a.changed).slice(FEW).forEach((run) => hidden.add(run.id));
}

function showOnly(ids) {
  data.runs.forEach((run) => ids.has(run.id) ? hidden.delete(run.id) : hidden.add(run.id));
  refresh();
}

function drawChips() {
  const about = data.runs.map((run) => {
    const own = style(run);
    return el("button", {type: "button", "aria-pressed": String(!own.hidden), "data-run": run.id, onclick: () => {
      hidden.has(run.id) ? hidden.delete(run.id) : hidden.add(run.id);
      refresh();
    }}, el("i", {class: "swatch", style: {borderTopColor: own.colour, borderTopStyle: own.dash === "dashdot" ? "dashed" : own.dash}}), run.name,
      live ? state(run) : null);
  });
  if (about.length > 2) about.push(el("button", {type: "button", onclick: () => showOnly(new Set(data.runs.map((run) => run.id)))}, "all"), el("button", {type: "button", onclick: () => showOnly(new Set())}, "none"));
  const focused = chips.contains(document.activeElement) ? document.activeElement.dataset.run : null;
  const shown = data.runs.filter((run) => !hidden.has(run.id)).length;
  empty(chips).append(...(data.runs.length <= MANY ? about : [el("details", {open: unfolded, ontoggle: (event) => { unfolded = event.target.open; }},
    el("summary", {}, `${shown} of ${data.runs.length} runs are shown; choose`), el("div", {class: "chips-within"}, about))]));
  if (focused) chips.querySelector(`[data-run="${focused}"]`)?.focus();
}

function refresh() {
  drawChips();
  parts.forEach((part) => part.again());
  const round = data.runs.map((run) => `${run.name} ${last(column(run, "round")) ?? 0}`).join(", ");
  document.body.dataset.rounds = round;
}

function contents() {
  empty(document.getElementById("contents")).append(...[...main.querySelectorAll("section")].filter((one) => !one.hidden)
    .map((one) => el("a", {href: `#${one.id}`}, one.querySelector("h2").textContent)));
}

// Draw everything again: at the start, after a change of colours, and when runs are added or removed.
async function draw() {
  charts.forEach((chart) => chart.remove());
  introduce();
  empty(main);
  main.append(...data.sweeps.flatMap(sweepSections));
  parts = [];
  if (data.runs.length) {
    const table = el("div");
    parts = [{section: table, again: () => empty(table).append(overview(data.runs))}, sites(), curves(), clients(mapOf), detection(), classBars(), quality(), robustBars(), cost(), settings()];
    main.append(...parts.map((part) => part.section));
  } else if (!data.sweeps.length) {
    main.append(el("p", {}, live ? "No runs yet; they appear here as they start." : "Nothing to show."));
  }
  refresh();
  contents();
  await Promise.all(inView().map((chart) => chart.shown));
}

const everything = () => Promise.all([...charts].map((chart) => chart.shown));

async function mapOf(id) {
  if (!live) return data.maps[id];
  try {
    const answer = await fetch(`/map/${id}`);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;   // the server has gone; the next event tries again
  }
}

function setTheme(name) {
  const dark = name ? name === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

// The width of an A4 sheet in the browser's pixels, to which a print of the screen therefore shrinks.
const SHEET = 700, READABLE = 1000;
function fitSheet() {
  const style = getComputedStyle(document.body), wide = document.body.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  document.documentElement.style.setProperty("--on-screen", `${wide}px`);
  document.documentElement.style.setProperty("--shrink", Math.min(1, SHEET / wide));
}

async function printPage() {
  const before = document.documentElement.dataset.theme;
  document.body.style.maxWidth = `${READABLE}px`;
  if (before !== "light") setTheme("light");
  await draw();
  await everything();
  await new Promise((done) => setTimeout(done, 300));
  fitSheet();
  print();
  document.body.style.maxWidth = "";
  if (before !== "light") setTheme(before);
  await draw();
}

function start() {
  const theme = document.getElementById("theme");
  setTheme("");
  theme.addEventListener("change", () => { setTheme(theme.value); draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (!theme.value) { setTheme(""); draw(); } });
  document.getElementById("print").addEventListener("click", printPage);
  addEventListener("beforeprint", fitSheet);
  if (live) { listen(); return Promise.resolve(); }
  Object.assign(data, JSON.parse(document.getElementById("data").textContent));
  document.getElementById("about").textContent = `made ${data.made.replace("T", " ")}`;
  return draw();
}

// Server-sent events: the existing runs, then every run and sweep that has changed.
function listen() {
  const about = document.getElementById("about"), source = new EventSource("/events");
  let order = [];
  source.addEventListener("runs", (event) => {
    order = JSON.parse(event.data);
    const known = data.runs.length;
    data.runs = data.runs.filter((run) => order.includes(run.id));
    if (data.runs.length !== known || order.length === 0) draw();
  });
  source.addEventListener("changed", (event) => {
    const news = JSON.parse(event.data);
    const fresh = new Map(data.runs.map((run) => [run.id, run]));
    const shape = shapeOf(fresh.values());
    news.runs.forEach((run) => fresh.set(run.id, run));
    data.runs = order.filter((id) => fresh.has(id)).map((id) => fresh.get(id));
    if (news.sweeps) data.sweeps = news.sweeps;
    if (news.sweeps || shapeOf(data.runs) !== shape) draw();
    else refresh();
    about.textContent = `live; last change ${new Date().toLocaleTimeString()}`;
    document.getElementById("spoken").textContent = news.runs.map((run) => `${run.name}: round ${last(column(run, "round")) ?? 0}, ${run.status}`).slice(0, 3).join("; ");
  });
  source.onerror = () => { about.textContent = "the server does not answer; trying again"; };
  source.onopen = () => { about.textContent = "live"; };
}

// What decides which charts are shown.
const shapeOf = (runs) => JSON.stringify([...runs].map((run) => [run.id, Object.keys(run.robust), "attack_success" in run.columns]));

start().then(() => requestAnimationFrame(() => requestAnimationFrame(() => {
  performance.mark("drawn");
  document.body.dataset.ready = "yes";
})));
