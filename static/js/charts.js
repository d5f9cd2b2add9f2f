// Live graphs: history first, then each new sample. A gap in the samples is a gap in the line. All graphs of a page share
// the cross-hair and the part of the time axis that is zoomed to; each can be read as a table.

import { drawMarks, figuresOf, markText } from "./figures.js";
import { now } from "./times.js";

const MOST_SERIES = 6;
const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3], [], [6, 3]];
const GAP_FACTOR = 4;
const LEAST_ZOOM = 10;
const TABLE_SECONDS = 5;
const CHOICE_SECONDS = 30; // the busiest may be others by now
const UNTOLD_SECONDS = 10; // of a chosen queue that is not among the busiest no samples are sent: they are asked for
const BEFORE_SECONDS = 60; // the line of the day or week before is read so far ahead
const BEFORE = { 86400: "yesterday", 604800: "last week" };
const KINDS = { in: "in", out: "out" };

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

class Graph {
  constructor(figure) {
    this.figure = figure;
    this.kinds = figure.dataset.graph.split(" ");
    this.canvas = figure.querySelector("[data-graph-canvas]");
    this.legend = figure.querySelector("[data-graph-legend]");
    this.spanSelect = figure.querySelector("[data-graph-span]");
    this.beforeSelect = figure.querySelector("[data-graph-before]");
    this.whole = figure.querySelector("[data-graph-whole]");
    this.tableSwitch = figure.querySelector("[data-graph-table-switch]");
    this.table = figure.querySelector("[data-graph-table]");
    this.chooser = figure.querySelector("[data-graph-choose]");
    this.key = `kennel-graph:${location.pathname}:${figure.dataset.graph}`;
    this.chosen = kept(this.key);
    this.busiest = [];
    this.rankedAt = this.loadedAt = -Infinity;
    this.names = [];
    this.marks = [];
    this.columns = new Map();
    this.earlier = new Map();
    this.drawnAt = 0;
    this.toldAt = 0;
    this.plot = null;
    figure.hidden = false;
    this.spanSelect.addEventListener("change", () => { zoomTo(null); this.load(); });
    this.beforeSelect.addEventListener("change", () => this.load());
    this.whole.addEventListener("click", () => { zoomTo(null); this.canvas.focus(); });
    this.tableSwitch.addEventListener("click", () => this.switchTable());
    this.chooser.addEventListener("toggle", () => { if (this.chooser.open) this.offer(); });
    this.chooser.addEventListener("change", () => this.choose([...this.chooser.querySelectorAll("input:checked")].map((box) => box.value)));
    this.chooser.addEventListener("keydown", (event) => { if (event.key === "Escape") { this.chooser.open = false; this.chooser.firstElementChild.focus(); event.stopPropagation(); } });
    figure.querySelector("[data-graph-busiest]").addEventListener("click", () => { this.choose([]); this.offer(); });
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.plot?.setSize({ width: this.canvas.clientWidth, height: this.canvas.clientHeight })).observe(this.canvas);
  }

  get span() { return Number(this.spanSelect.value); }

  ranked() { return order[this.kinds[0]] ?? order.depth ?? []; }

  // Those that were chosen; else the busiest, Kennel's own only if there are no others. They change now and then, not with each sample.
  queues() {
    if (this.chosen.length) return this.chosen;
    if (now() - this.rankedAt > CHOICE_SECONDS || this.busiest.length < Math.min(MOST_SERIES, this.ranked().length)) {
      this.rankedAt = now();
      const others = this.ranked().filter((name) => !order.own.includes(name));
      this.busiest = (others.length ? others : this.ranked()).slice(0, MOST_SERIES).sort();
    }
    return this.busiest;
  }

  wanted() { return this.queues().flatMap((name) => this.kinds.map((kind) => `${kind}:${name}`)).slice(0, MOST_SERIES); }

  choose(names) {
    this.chosen = names.slice(0, MOST_SERIES).sort();
    this.rankedAt = -Infinity;
    keep(this.key, this.chosen);
    for (const box of this.chooser.querySelectorAll("input")) box.disabled = !box.checked && this.chosen.length >= MOST_SERIES;
    this.load();
  }

  offer() {
    const shown = new Set(this.queues());
    const all = [...new Set([...shown, ...this.ranked()])].sort((a, b) => order.own.includes(a) - order.own.includes(b) || (a < b ? -1 : 1));
    this.chooser.querySelector("[data-graph-choices]").replaceChildren(...all.map((name) => {
      const box = Object.assign(document.createElement("input"), { type: "checkbox", value: name, checked: shown.has(name), disabled: !shown.has(name) && shown.size >= MOST_SERIES });
      const label = document.createElement("label");
      label.append(box, ` ${name}${order.own.includes(name) ? " (Kennel's own)" : ""}`);
      return label;
    }));
  }

  // "+3 more": what the graph does not draw is never left out in silence.
  tellMore() {
    const more = order.total - this.queues().length;
    this.chooser.hidden = order.total < 2 || (more <= 0 && !this.chosen.length);
    const said = more > 0 ? `+${more} more` : "Choose";
    const summary = this.chooser.firstElementChild;
    if (summary.textContent !== said) summary.textContent = said;
  }

  label(series) {
    const [kind, ...rest] = series.split(":");
    return this.kinds.length > 1 ? KINDS[kind] ?? kind : rest.join(":");
  }

  async load() {
    this.loadedAt = now();
    this.names = this.wanted();
    this.tellMore();
    this.columns = new Map(this.names.map((name) => [name, [[], []]]));
    this.before = this.beforeSelect.value;
    let earlier = {};
    if (this.names.length) {
      const query = new URLSearchParams({ seconds: this.span, ...(this.before && { before: this.before }) });
      for (const name of this.names) query.append("series", name);
      try {
        const answer = await fetch(`${this.figure.dataset.history}?${query}`, { headers: { Accept: "application/json" } });
        if (answer.ok) {
          const { series, marks, before = {} } = await answer.json();
          earlier = before;
          const shown = new Set(this.names.map((name) => name.slice(name.indexOf(":") + 1)));
          this.marks = marks.filter((mark) => !mark.action.startsWith("queue.") || shown.has(mark.target));
          for (const [name, columns] of Object.entries(series)) {
            const seen = this.columns.get(name);
            const newest = columns[0].at(-1) ?? 0;
            seen[0].forEach((at, i) => { if (at > newest) { columns[0].push(at); for (const values of columns.slice(1)) values.push(seen[1][i]); } });
            this.columns.set(name, columns);
          }
        }
      } catch { /* the reconnect banner says it; live samples go on */ }
    }
    this.earlier = new Map(this.before ? this.names.map((name) => [name, earlier[name] ?? [[], []]]) : []);
    this.build();
  }

  add(points) {
    if (this.wanted().join() !== this.names.join()) return void this.load();
    if (this.names.some((name) => !points[name]) && now() - this.loadedAt > UNTOLD_SECONDS) return void this.load();
    if (this.before && now() - this.loadedAt > BEFORE_SECONDS) return void this.load();
    this.tellMore();
    for (const name of this.names) {
      const point = points[name];
      const [moments, ...columns] = this.columns.get(name);
      if (!point || point[0] <= (moments.at(-1) ?? 0)) continue;
      const step = moments.length > 1 ? Math.max(1, moments.at(-1) - moments.at(-2)) : 1;
      if (moments.length && point[0] - moments.at(-1) > Math.max(5, step * GAP_FACTOR)) { moments.push(moments.at(-1) + step); for (const values of columns) values.push(null); }
      moments.push(point[0]);
      for (const values of columns) values.push(point[1]);
      while (moments[0] < point[0] - this.span) for (const values of [moments, ...columns]) values.shift();
    }
    if (now() - this.drawnAt >= this.span / 900) this.draw();
  }

  // Three columns for each series: the values, and the band from the least to the greatest sample that each is the mean of.
  // After them one for each series as it was a day or a week before.
  data() {
    const tables = this.names.map((name) => this.columns.get(name)).map(([at, values, low, high]) => [at, values, low ?? values, high ?? values]);
    const earlier = [...this.earlier.values()];
    return tables.length ? uPlot.join([...tables, ...earlier], [...tables.map(() => [1, 2, 2, 2]), ...earlier.map(() => [1, 1])]) : [[]];
  }

  build() {
    this.plot?.destroy();
    this.canvas.querySelector(".graph-none")?.remove();
    const large = Number(getComputedStyle(this.canvas).getPropertyValue("--chart-size")) || 1;
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--chart-grid"), width: 1 }, ticks: { show: false }, font: `${11 * large}px ${css("--sans")}` };
    this.plot = new uPlot({
      width: this.canvas.clientWidth,
      height: this.canvas.clientHeight,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "kennel" }, points: { size: 7 }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => zoomTo(null) } },
      scales: { y: { range: (_, low, high) => [0, Math.max(4, (high ?? 0) * 1.1)] } },
      axes: [
        { ...axis, size: 24 * large, space: (this.span > 86400 ? 120 : 64) * large, values: (_, splits) => splits.map((at) => this.clock(at)) },
        { ...axis, size: 46 * large, values: (_, splits) => splits.map((value) => (Number.isInteger(value) ? compact.format(value) : "")) },
      ],
      series: [{}, ...this.names.flatMap((name, i) => [
        { label: this.label(name), stroke: css(`--chart-${i + 1}`), width: 1.75, dash: DASHES[i], points: { show: false }, spanGaps: false },
        ...["low", "high"].map(() => ({ stroke: "transparent", width: 1, points: { show: false }, spanGaps: false })),
      ]), ...[...this.earlier.keys()].map((name, i) => (
        { label: `${this.label(name)} ${BEFORE[this.before]}`, stroke: `color-mix(in srgb, ${css(`--chart-${i + 1}`)} 60%, ${css("--quiet")})`, width: 1, dash: [2, 3], points: { show: false }, spanGaps: false }
      ))],
      bands: this.names.map((name, i) => ({ series: [3 * i + 3, 3 * i + 2], fill: `color-mix(in srgb, ${css(`--chart-${i + 1}`)} 28%, transparent)` })),
      hooks: { setCursor: [() => this.tell()], setSelect: [() => this.select()], draw: [(plot) => drawMarks(plot, this.marks, css)] },
    }, [[]], this.canvas);
    this.draw();
  }

  clock(seconds, exact = this.seconds) {
    const zone = document.documentElement.dataset.zone === "local" ? undefined : "UTC";
    const day = this.span > 86400 ? { day: "numeric", month: "short" } : {};
    return new Intl.DateTimeFormat("en-GB", { ...day, hour: "2-digit", minute: "2-digit", second: exact ? "2-digit" : undefined, timeZone: zone }).format(new Date(seconds * 1000));
  }

  // The span that was chosen, also where there are no samples: young history looks as young as it is.
  range() {
    return zoom ?? { min: now() - this.span, max: now() };
  }

  draw() {
    if (!this.plot) return;
    this.drawnAt = now();
    const data = this.data();
    this.plot.setData(data, false);
    const range = this.range();
    this.seconds = range.max - range.min < 240;
    this.plot.setScale("x", range);
    this.whole.hidden = zoom === null;
    let none = this.canvas.querySelector(".graph-none");
    if (data[0].length && none) none.remove();
    else if (!data[0].length && !none) this.canvas.append(Object.assign(document.createElement("p"), { className: "graph-none", textContent: "No samples yet" }));
    this.tell();
    if (!this.table.hidden && now() - this.toldAt >= TABLE_SECONDS) this.fillTable();
  }

  // --- zoom: by dragging, or + and − around the cross-hair

  select() {
    const { left, width } = this.plot.select;
    if (width < 4) return;
    const [min, max] = [left, left + width].map((x) => this.plot.posToVal(x, "x"));
    this.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (max - min >= LEAST_ZOOM) zoomTo({ min, max });
  }

  press(event) {
    if (!this.plot) return;
    const range = this.range();
    const width = range.max - range.min;
    const { left } = this.plot.cursor;
    const at = left >= 0 ? this.plot.posToVal(left, "x") : range.max;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const step = (event.key === "ArrowLeft" ? -1 : 1) * Math.max(1, this.plot.over.clientWidth / 60);
      const x = Math.min(this.plot.over.clientWidth - 1, Math.max(0, (left >= 0 ? left : this.plot.over.clientWidth) + step));
      this.plot.setCursor({ left: x, top: this.plot.over.clientHeight / 2 }, true, true);
    } else if (event.key === "+" || event.key === "=") {
      const half = Math.max(LEAST_ZOOM, width / 2) / 2;
      const middle = Math.min(range.max - half, Math.max(range.min + half, at));
      zoomTo({ min: middle - half, max: middle + half });
    } else if (event.key === "-") {
      if (!zoom) return;
      zoomTo(width * 2 >= this.span ? null : { min: Math.max(now() - this.span, range.min - width / 2), max: Math.min(now(), range.max + width / 2) });
    } else if (event.key === "Escape") zoomTo(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // --- the same in words

  switchTable() {
    this.table.hidden = !this.table.hidden;
    this.tableSwitch.setAttribute("aria-expanded", String(!this.table.hidden));
    if (!this.table.hidden) this.fillTable();
  }

  fillTable() {
    if (!this.plot) return; // the history is on its way; what it draws fills the table
    this.toldAt = now();
    const scrolled = this.table.scrollTop;
    const range = this.range();
    this.table.replaceChildren(...figuresOf({
      caption: this.table.getAttribute("aria-label"),
      heads: ["Time", ...this.names.flatMap((name) => [this.label(name), ...(this.isMean(name) ? ["least", "greatest"] : [])]), ...[...this.earlier.keys()].map((name) => `${this.label(name)} ${BEFORE[this.before]}`)],
      data: this.plot.data
        .filter((_, i) => i === 0 || i % 3 === 1 || i > 3 * this.names.length || this.isMean(this.names[Math.floor((i - 1) / 3)]))
        .map((column, i, all) => (i < all.length - this.earlier.size ? column : carried(column))),
      range,
      clock: (at) => this.clock(at, true),
      write: (value) => (value == null ? "–" : plain.format(value)),
      marks: this.marks.filter((mark) => mark.at >= range.min && mark.at <= range.max).map((mark) => `${this.clock(mark.at, true)} ${markText(mark)} ${mark.target}`),
    }));
    this.table.scrollTop = scrolled;
  }

  isMean(name) { return this.columns.get(name).length > 2; }

  tell() {
    if (!this.plot) return;
    const at = this.plot.cursor.idx;
    const keys = this.names.map((name, i) => {
      const column = this.plot.data[3 * i + 1] ?? [];
      let value = at == null ? this.columns.get(name)[1].at(-1) : column[at];
      if (value === undefined && at != null) for (let j = at; j >= 0 && value === undefined; j--) value = column[j];
      const key = document.createElement("span");
      key.className = "graph-key";
      const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      for (const [k, v] of Object.entries({ d: "M0 4H14", stroke: css(`--chart-${i + 1}`), "stroke-width": "2.5", "stroke-dasharray": DASHES[i].join(" ") || "none" })) line.setAttribute(k, v);
      swatch.setAttribute("viewBox", "0 0 14 8");
      swatch.setAttribute("aria-hidden", "true");
      swatch.append(line);
      const figure = document.createElement("b");
      const high = at == null || !this.isMean(name) ? null : this.plot.data[3 * i + 3][at];
      figure.textContent = (value == null ? "–" : plain.format(value)) + (high > value ? ` (to ${plain.format(high)})` : "");
      key.append(swatch, ` ${this.label(name)} `, figure);
      if (this.earlier.size) {
        const was = carried(this.plot.data[3 * this.names.length + 1 + i] ?? []);
        const then = at == null ? was[nearest(this.plot.data[0], now())] : was[at];
        key.append(` ${BEFORE[this.before]} ${then == null ? "–" : plain.format(then)}`);
      }
      return key;
    });
    if (at != null && this.plot.data[0][at] !== undefined) keys.unshift(Object.assign(document.createElement("span"), { className: "graph-at", textContent: this.clock(this.plot.data[0][at], true) }));
    this.legend.replaceChildren(...keys);
  }
}

// Its samples are further apart than those of today: each counts until the next one.
const carried = (column) => { let last; return column.map((value) => (last = value === undefined ? last : value)); };
const nearest = (moments, at) => { const i = moments.findIndex((each) => each > at); return i < 0 ? moments.length - 1 : Math.max(0, i - 1); };
const kept = (key) => { try { return JSON.parse(sessionStorage.getItem(key)) ?? []; } catch { return []; } };
const keep = (key, value) => { try { sessionStorage.setItem(key, JSON.stringify(value)); } catch { /* private window: for this page only */ } };

let order = { own: [], total: 0, ...JSON.parse(document.getElementById("region-pulse")?.textContent || "{}").order };
let zoom = null;
function zoomTo(range) {
  if (range === zoom) return;
  zoom = range;
  for (const graph of graphs) { graph.toldAt = 0; graph.draw(); }
}

const graphs = [...document.querySelectorAll("[data-graph]")].map((figure) => new Graph(figure));
for (const graph of graphs) graph.load();
let marked;
document.addEventListener("kennel:pulse", (event) => {
  const changed = marked !== undefined && event.detail.marked !== marked;
  marked = event.detail.marked;
  order = event.detail.order ?? order;
  for (const graph of graphs) if (changed) graph.load(); else graph.add(event.detail.points);
});
document.addEventListener("kennel:look", () => { for (const graph of graphs) graph.build(); });
// What was missed while the connection was gone may have been sampled all the same.
document.addEventListener("htmx:wsOpen", (() => { let first = true; return () => { if (!first) for (const graph of graphs) graph.load(); first = false; }; })());
