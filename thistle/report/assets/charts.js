// Charts by Bokeh: made once, then given new data; they take their colours from the style sheet.

const charts = new Set();
const P = Bokeh.Plotting;
Bokeh.set_log_level("warn");

// Charts are added to the page one by one: first those in view, then the others while the browser is idle.
const waiting = [];
let drawing = false;

function inTurn(chart) {
  return new Promise((done) => {
    waiting.push({chart, done});
    if (!drawing) { drawing = true; setTimeout(drawNext); }
  });
}

function distance({chart}) {
  const box = chart.host.getBoundingClientRect();
  return box.top > innerHeight ? box.top - innerHeight : box.bottom < 0 ? -box.bottom : 0;
}

async function drawNext() {
  const next = waiting.reduce((near, one, i) => distance(one) < distance(waiting[near]) ? i : near, 0);
  const [{chart, done}] = waiting.splice(next, 1);
  if (charts.has(chart)) await P.show(chart.figure, chart.host);
  done();
  if (waiting.length === 0) drawing = false;
  else if (waiting.some((one) => distance(one) === 0)) setTimeout(drawNext);
  else requestIdleCallback(drawNext, {timeout: 500});
}

const inView = () => [...charts].filter((chart) => distance({chart}) === 0);

function tip(lines) {
  return el("div", {class: "tip"}, lines.map((line, i) => i ? el("div", {}, line) : el("strong", {}, line)));
}

class Chart {
  constructor(host, options) {
    this.host = host;
    const {label, tools = "pan,box_zoom,reset,save", height = 300, ...more} = options;
    this.figure = P.figure({height, tools, sizing_mode: "stretch_width", toolbar_location: "above", ...more});
    this.figure.toolbar_inner = true;  // outside, it would keep a band free that is nearly always empty
    this.figure.toolbar.logo = null;
    this.figure.toolbar.autohide = true;
    this.figure.toolbar.active_drag = null;
    host.setAttribute("role", "img");
    host.setAttribute("aria-label", label);
    charts.add(this);
    this.style();
    this.shown = inTurn(this);
  }

  hover(renderers, tooltips, mode = "mouse") {
    this.figure.add_tools(new Bokeh.HoverTool({renderers, tooltips, mode, line_policy: "nearest", point_policy: "follow_mouse", attachment: "horizontal"}));
  }

  style() {
    const f = this.figure, ink = shade("ink"), quiet = shade("quiet"), line = shade("line");
    f.background_fill_color = null; f.border_fill_color = null; f.outline_line_color = line;
    for (const axis of f.axes) {
      axis.axis_label_text_color = quiet; axis.major_label_text_color = ink; axis.axis_line_color = line;
      axis.major_tick_line_color = line; axis.minor_tick_line_color = null;
      axis.axis_label_text_font_style = "normal"; axis.major_label_text_font_size = "12px";
      axis.axis_label_text_font_size = "12.5px";
      if (axis.group_text_color !== undefined) { axis.group_text_color = ink; axis.group_text_font_size = "12px"; }
      if (axis.separator_line_color !== undefined) axis.separator_line_color = line;
    }
    for (const grid of f.grids) grid.grid_line_color = line, grid.grid_line_alpha = 0.6;
  }

  // There is no round 2.5.
  countRounds() {
    const ticker = new Bokeh.AdaptiveTicker({min_interval: 1, num_minor_ticks: 0, mantissas: [1, 2, 5]});
    this.figure.xaxis.ticker = ticker;
    this.figure.xgrid.ticker = ticker;
  }

  // Bokeh keeps every document until it is told otherwise; a live page makes many.
  remove() {
    charts.delete(this);
    this.shown.then(() => {
      const own = this.figure.document;
      own?.remove_root(this.figure);
      if (Bokeh.documents.includes(own)) Bokeh.documents.splice(Bokeh.documents.indexOf(own), 1);
    });
  }
}

// Lines over rounds (or whatever x is), some with a band around them; a `reference` is a thin line that is no result.
// `set` may be called whenever there is news.
class Lines extends Chart {
  constructor(host, {format = decimal, x = "round", y = "", whole = false, ...options}) {
    super(host, {x_axis_label: x, y_axis_label: y, ...options});
    this.format = format;
    this.x = x;
    this.series = new Map();
    if (format === percent) this.figure.yaxis.formatter = new Bokeh.NumeralTickFormatter({format: "0 %"});
    if (x === "round") this.countRounds();
    if (whole) this.figure.y_range = new Bokeh.Range1d({start: -0.02, end: 1.02});
  }

  set(series) {
    const wanted = new Set(series.map((one) => one.id));
    for (const [id, own] of this.series) if (!wanted.has(id)) own.show(false);
    for (const one of series) {
      if (!this.series.has(one.id)) this.series.set(one.id, this.add(one));
      this.series.get(one.id).update(one);
    }
    this.now = series;
    this.host.dataset.series = series.filter((one) => !one.hidden && !one.reference).length;
  }

  add(one) {
    const source = new Bokeh.ColumnDataSource({data: {x: [], y: [], low: [], high: []}});
    const f = this.figure;
    const band = one.low ? f.varea({field: "x"}, {field: "low"}, {field: "high"}, {source, fill_alpha: 0.18, level: "underlay"}) : null;
    const line = f.line({field: "x"}, {field: "y"}, {source, line_width: one.reference ? 1 : 2});
    const dots = f.scatter({field: "x"}, {field: "y"}, {source, size: 5});
    const drawn = [line, dots, band].filter(Boolean);
    let current = one;
    this.hover([line], (_, at) => tip([current.name, `${this.x} ${decimal(current.x[at.index], 6)}: ${this.format(current.y[at.index])}`
      + (current.low && current.high[at.index] > current.low[at.index]
        ? ` (${this.format(current.low[at.index])} to ${this.format(current.high[at.index])})` : "")]), "vline");
    return {
      show: (on) => drawn.forEach((one) => { one.visible = on; }),
      update: (one) => {
        current = one;
        const y = one.y.map((value) => value ?? NaN);
        source.data = {x: one.x, y, low: one.low ?? y, high: one.high ?? y};
        line.glyph.line_color = one.colour; line.glyph.line_dash = one.dash;
        dots.glyph.fill_color = one.colour; dots.glyph.line_color = one.colour;
        if (band) band.glyph.fill_color = one.colour;
        drawn.forEach((own) => { own.visible = !one.hidden; });
        if (one.reference || one.x.length > 60) dots.visible = false;
      },
    };
  }
}

// The numbers behind a line chart, for readers who cannot see it; written on request.
function numbers(chart) {
  const body = el("div");
  const box = el("details", {ontoggle: () => {
    if (!box.open) return;
    const rows = chart().now.filter((one) => !one.hidden).flatMap((one) => one.x.map((x, i) =>
      one.y[i] == null || Number.isNaN(one.y[i]) ? null : [one.name, decimal(x, 6), chart().format(one.y[i])]).filter(Boolean));
    empty(body).append(table(["line", chart().x, "value"], rows.slice(-2000), [1, 2]));
  }}, el("summary", {}, "the numbers"), body);
  return box;
}

// Bars by category, one colour per series.
class Bars extends Chart {
  constructor(host, {categories, series, format = percent, y = "", ...options}) {
    const factors = categories.flatMap((category) => series.map((one) => [category, one.name]));
    super(host, {x_range: new Bokeh.FactorRange({factors, range_padding: 0.05, group_padding: 1, factor_padding: 0.1}), y_axis_label: y, ...options});
    this.figure.y_range = new Bokeh.Range1d({start: 0, end: 1});
    this.figure.yaxis.formatter = new Bokeh.NumeralTickFormatter({format: "0 %"});
    this.figure.xaxis.major_label_text_alpha = 0;
    this.figure.xaxis.major_tick_line_alpha = 0;
    this.figure.xaxis.major_label_text_font_size = "1px";
    this.figure.xgrid.visible = false;
    for (const one of series) {
      const known = categories.filter((category) => one.values[category] != null);
      const source = new Bokeh.ColumnDataSource({data: {x: known.map((category) => [category, one.name]), top: known.map((category) => one.values[category])}});
      const bars = this.figure.vbar({x: {field: "x"}, top: {field: "top"}, width: 0.9, source, fill_color: one.colour, line_color: one.colour});
      this.hover([bars], (_, at) => tip([one.name, `${known[at.index]}: ${format(one.values[known[at.index]])}`]));
    }
    this.figure.xaxis.major_label_text_font_size = "1px";
  }
  style() { super.style(); this.figure.xaxis.major_label_text_font_size = "1px"; }
}

// A map of labelled cells over two sets of names.
class Cells extends Chart {
  constructor(host, {rows, columns, cells, x, y, ...options}) {
    super(host, {x_range: columns, y_range: [...rows].reverse(), x_axis_label: x, y_axis_label: y,
      height: Math.max(170, 80 + 52 * rows.length), ...options});
    this.figure.xgrid.visible = false; this.figure.ygrid.visible = false;
    const source = new Bokeh.ColumnDataSource({data: {
      x: cells.map((cell) => cell.column), y: cells.map((cell) => cell.row), text: cells.map((cell) => cell.text),
      fill: cells.map((cell) => cell.fill), ink: cells.map((cell) => cell.ink)}});
    const rects = this.figure.rect({x: {field: "x"}, y: {field: "y"}, width: 0.97, height: 0.94, source, fill_color: {field: "fill"}, line_color: null});
    this.figure.text({x: {field: "x"}, y: {field: "y"}, text: {field: "text"}, text_color: {field: "ink"}, source,
      text_align: "center", text_baseline: "middle", text_font_size: "13px"});
    this.hover([rects], (_, at) => tip(cells[at.index].tip));
  }
}

// Samples of viridis, which is also readable in grey.
const VIRIDIS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const hex = (colour, from) => parseInt(colour.slice(from, from + 2), 16);

// Black or white, whichever is easier to read on it (WCAG's relative luminance).
function inkOn(colour) {
  const linear = [1, 3, 5].map((from) => (hex(colour, from) / 255) ** 2.2);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.18 ? "#111111" : "#ffffff";
}

function heat(share) {
  const at = Math.min(0.9999, Math.max(0, share)) * (VIRIDIS.length - 1), i = Math.floor(at), part = at - i;
  const mix = (from) => Math.round(hex(VIRIDIS[i], from) * (1 - part) + hex(VIRIDIS[i + 1], from) * part).toString(16).padStart(2, "0");
  const fill = `#${mix(1)}${mix(3)}${mix(5)}`;
  return {fill, ink: inkOn(fill)};
}
