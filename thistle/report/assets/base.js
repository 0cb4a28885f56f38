// Helpers for everything else. Text from run folders enters the page as text, never as markup.

const data = {runs: [], maps: {}, sweeps: [], made: ""};

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

const empty = (host) => { host.replaceChildren(); return host; };

const percent = (value) => value == null ? "–" : `${(100 * value).toFixed(1)}\u00a0%`;
const decimal = (value, digits = 3) => value == null ? "–" : String(Number(value.toPrecision(digits)));

function size(value) {
  if (value == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) { value /= 1000; unit++; }
  return `${decimal(value)} ${units[unit]}`;
}

const withError = (cell) => cell == null ? "–"
  : cell.error == null ? percent(cell.mean) : `${(100 * cell.mean).toFixed(1)} ± ${(100 * cell.error).toFixed(1)}\u00a0%`;

// Decode compressed bytes from base64.
async function unpack(text, Kind) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Kind(await new Response(stream).arrayBuffer());
}

// A group of radio buttons, or a list if there are many choices.
let groups = 0;
function choice(label, options, chosen, changed) {
  if (options.length > 4) {
    const list = el("select", {onchange: () => changed(list.value)},
      options.map(([value, text]) => el("option", {value, selected: value === chosen}, text)));
    return el("label", {}, `${label} `, list);
  }
  const name = `choice-${groups++}`;
  return el("fieldset", {}, el("legend", {}, label), options.map(([value, text]) => el("label", {},
    el("input", {type: "radio", name, value, checked: value === chosen, onchange: () => changed(value)}), ` ${text}`)));
}

function check(label, on, changed) {
  const box = el("input", {type: "checkbox", checked: on, onchange: () => changed(box.checked)});
  return el("label", {}, box, ` ${label}`);
}

function table(head, rows, numbers = []) {
  const kind = (i) => numbers.includes(i) ? {class: "number"} : {};
  return el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "table"}, el("table", {},
    el("thead", {}, el("tr", {}, head.map((cell, i) => el("th", {scope: "col", ...kind(i)}, cell)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", kind(i), cell)))))));
}

function section(id, title, ...content) {
  return el("section", {id, "aria-labelledby": `${id}-title`}, el("h2", {id: `${id}-title`}, title), ...content);
}

const card = (title, ...content) => el("div", {class: "card"}, el("h3", {}, title), ...content);

const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Okabe and Ito's colours, which people with any kind of colour vision can tell apart; neighbours differ in their
// dashes too, so that of two identical curves both are seen.
const COLOURS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#b8860b", "#333333", "#56b4e9"],
  dark: ["#56b4e9", "#ff8c42", "#2fc79a", "#f0a6ce", "#b79cf0", "#f0d04a", "#e6eaed", "#7fa8c9"],
};
const DASHES = ["solid", "dashed", "dotted", "dashdot"];

function look(place) {
  const own = COLOURS[document.documentElement.dataset.theme === "dark" ? "dark" : "light"];
  return {colour: own[place % own.length], dash: DASHES[(place + Math.floor(place / own.length)) % DASHES.length]};
}
