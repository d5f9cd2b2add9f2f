// Live graphs: history first, then each new sample. A gap in the samples is a gap in the line.

import { now } from "./times.js";

const MOST_SERIES = 6;
const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3], [], [6, 3]];
const GAP_FACTOR = 4;
const LEAST_SPAN = 60;
const WORDS = { "gate.open": "unleashed:", "gate.close": "leashed:", "queue.clear": "cleared:", "queue.requeue": "requeued:" };

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

class Graph {
  constructor(figure) {
    this.figure = figure;
    this.kind = figure.dataset.graph;
    this.canvas = figure.querySelector("[data-graph-canvas]");
    this.legend = figure.querySelector("[data-graph-legend]");
    this.spanSelect = figure.querySelector("[data-graph-span]");
    this.names = [];
    this.marks = [];
    this.columns = new Map();
    this.drawnAt = 0;
    this.plot = null;
    figure.hidden = false;
    this.spanSelect.addEventListener("change", () => this.load());
    new ResizeObserver(() => this.plot?.setSize({ width: this.canvas.clientWidth, height: this.canvas.clientHeight })).observe(this.canvas);
  }

  get span() { return Number(this.spanSelect.value); }

  wanted() {
    const rows = [...document.querySelectorAll("[data-series]")].map((row) => `${this.kind}:${row.dataset.series.slice(row.dataset.series.indexOf(":") + 1)}`);
    return [...new Set(rows)].slice(0, MOST_SERIES);
  }

  async load() {
    this.names = this.wanted();
    this.columns = new Map(this.names.map((name) => [name, [[], []]]));
    if (this.names.length) {
      const query = new URLSearchParams({ seconds: this.span });
      for (const name of this.names) query.append("series", name);
      try {
        const answer = await fetch(`${this.figure.dataset.history}?${query}`, { headers: { Accept: "application/json" } });
        if (answer.ok) {
          const { series, marks } = await answer.json();
          this.marks = marks;
          for (const [name, columns] of Object.entries(series)) {
            const seen = this.columns.get(name);
            const newest = columns[0].at(-1) ?? 0;
            seen[0].forEach((at, i) => { if (at > newest) { columns[0].push(at); columns[1].push(seen[1][i]); } });
            this.columns.set(name, columns);
          }
        }
      } catch { /* the reconnect banner says it; live samples go on */ }
    }
    this.build();
  }

  add(points) {
    if (this.wanted().join() !== this.names.join()) return void this.load();
    for (const name of this.names) {
      const point = points[name];
      const [moments, values] = this.columns.get(name);
      if (!point || point[0] <= (moments.at(-1) ?? 0)) continue;
      const step = moments.length > 1 ? Math.max(1, moments.at(-1) - moments.at(-2)) : 1;
      if (moments.length && point[0] - moments.at(-1) > Math.max(5, step * GAP_FACTOR)) { moments.push(moments.at(-1) + step); values.push(null); }
      moments.push(point[0]);
      values.push(point[1]);
      while (moments[0] < point[0] - this.span) { moments.shift(); values.shift(); }
    }
    if (now() - this.drawnAt >= this.span / 900) this.draw();
  }

  data() {
    const tables = this.names.map((name) => this.columns.get(name));
    return tables.length ? uPlot.join(tables, tables.map(() => [1, 2])) : [[]];
  }

  build() {
    this.plot?.destroy();
    this.canvas.querySelector(".graph-none")?.remove();
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--chart-grid"), width: 1 }, ticks: { show: false }, font: `11px ${css("--sans")}` };
    this.plot = new uPlot({
      width: this.canvas.clientWidth,
      height: this.canvas.clientHeight,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "kennel" }, points: { size: 7 }, drag: { x: true, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(4, (high ?? 0) * 1.1)] } },
      axes: [
        { ...axis, size: 24, space: 64, values: (_, splits) => splits.map((at) => this.clock(at)) },
        { ...axis, size: 46, values: (_, splits) => splits.map((value) => (Number.isInteger(value) ? compact.format(value) : "")) },
      ],
      series: [{}, ...this.names.map((name, i) => ({
        label: name.slice(this.kind.length + 1),
        stroke: css(`--chart-${i + 1}`),
        width: 1.75,
        dash: DASHES[i],
        points: { show: false },
        spanGaps: false,
      }))],
      hooks: { setCursor: [() => this.tell()], draw: [(plot) => this.drawMarks(plot)] },
    }, [[]], this.canvas);
    this.draw();
  }

  clock(seconds) {
    const zone = document.documentElement.dataset.zone === "local" ? undefined : "UTC";
    return new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: this.seconds ? "2-digit" : undefined, timeZone: zone }).format(new Date(seconds * 1000));
  }

  draw() {
    if (!this.plot) return;
    this.drawnAt = now();
    const data = this.data();
    this.plot.setData(data, false);
    // Young history fills the width; it never looks longer than it is.
    const first = Math.min(data[0][0] ?? 0, now() - LEAST_SPAN);
    this.seconds = now() - first < 240;
    this.plot.setScale("x", { min: Math.max(now() - this.span, first), max: now() });
    let none = this.canvas.querySelector(".graph-none");
    if (data[0].length && none) none.remove();
    else if (!data[0].length && !none) this.canvas.append(Object.assign(document.createElement("p"), { className: "graph-none", textContent: "No samples yet" }));
    this.tell();
  }

  // What operators did, on the time axis: who opened or closed what.
  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * scale}px ${css("--sans")}`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    let free = -Infinity;
    for (const mark of [...this.marks].sort((a, b) => a.at - b.at)) {
      const x = plot.valToPos(mark.at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      const hue = css({ "gate.open": "--green", "gate.close": "--amber" }[mark.action] ?? "--red");
      ctx.strokeStyle = ctx.fillStyle = hue;
      ctx.setLineDash([3 * scale, 3 * scale]);
      ctx.lineWidth = scale;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const text = `${WORDS[mark.action]} ${mark.actor}`;
      const width = ctx.measureText(text).width;
      const left = x + 4 * scale + width > bbox.left + bbox.width ? x - 4 * scale - width : x + 4 * scale;
      if (left > free) { ctx.fillText(text, left, bbox.top); free = left + width + 6 * scale; }
    }
    ctx.restore();
  }

  tell() {
    if (!this.plot) return;
    const at = this.plot.cursor.idx;
    const keys = this.names.map((name, i) => {
      const column = this.plot.data[i + 1] ?? [];
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
      figure.textContent = value == null ? "–" : plain.format(value);
      key.append(swatch, ` ${name.slice(this.kind.length + 1)} `, figure);
      return key;
    });
    this.legend.replaceChildren(...keys);
  }
}

const graphs = [...document.querySelectorAll("[data-graph]")].map((figure) => new Graph(figure));
for (const graph of graphs) graph.load();
let marked;
document.addEventListener("kennel:pulse", (event) => {
  const changed = marked !== undefined && event.detail.marked !== marked;
  marked = event.detail.marked;
  for (const graph of graphs) if (changed) graph.load(); else graph.add(event.detail.points);
});
document.addEventListener("kennel:look", () => { for (const graph of graphs) graph.build(); });
// What was missed while the connection was gone may have been sampled all the same.
document.addEventListener("htmx:wsOpen", (() => { let first = true; return () => { if (!first) for (const graph of graphs) graph.load(); first = false; }; })());
