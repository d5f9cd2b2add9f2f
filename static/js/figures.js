// What stands on and beside a graph: what operators did, on its time axis, and its figures as a table.

const MOST_ROWS = 60;
const WORDS = {
  "gate.open": "unleashed:", "gate.close": "leashed:", "queue.clear": "cleared:", "queue.requeue": "requeued:",
  "queue.delete": "deleted:", "queue.rule": "new rule:", "leader.break": "force-released:", "leader.step_down": "stepped down:",
  "worker.drain": "drained:", "worker.resume": "resumed:", "worker.stop": "stopped:", "scaling.policy": "new policy:",
};
const HUES = { "gate.open": "--green", "worker.resume": "--green", "gate.close": "--amber", "worker.drain": "--amber", "queue.rule": "--blue", "scaling.policy": "--blue", "leader.step_down": "--blue" };

export const markText = (mark) => `${WORDS[mark.action] ?? mark.action} ${mark.actor}`;

// Lines of who did what; a name is written where there is room for it.
export function drawMarks(plot, marks, css) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.font = `${11 * scale}px ${css("--sans")}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  let free = -Infinity;
  for (const mark of [...marks].sort((a, b) => a.at - b.at)) {
    const x = plot.valToPos(mark.at, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = css(HUES[mark.action] ?? "--red");
    ctx.setLineDash([3 * scale, 3 * scale]);
    ctx.lineWidth = scale;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const text = markText(mark);
    const width = ctx.measureText(text).width;
    const left = x + 4 * scale + width > bbox.left + bbox.width ? x - 4 * scale - width : x + 4 * scale;
    if (left > free) { ctx.fillText(text, left, bbox.top); free = left + width + 6 * scale; }
  }
  ctx.restore();
}

const made = (tag, text, more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);

// A table of at most 60 moments, newest first, and a list of what operators did between them.
export function figuresOf({ caption, heads, data, range, clock, write, marks }) {
  const seen = data[0].map((at, i) => [at, i]).filter(([at]) => at >= range.min && at <= range.max);
  const step = Math.max(1, Math.ceil(seen.length / MOST_ROWS));
  const table = document.createElement("table");
  table.className = "grid";
  table.append(made("caption", caption, { className: "visually-hidden" }));
  const head = table.createTHead().insertRow();
  heads.forEach((word, i) => head.append(made("th", word, { scope: "col", className: i ? "num" : "" })));
  const body = table.createTBody();
  for (let n = seen.length - 1; n >= 0; n -= step) {
    const [at, i] = seen[n];
    const row = body.insertRow();
    row.append(made("th", clock(at), { scope: "row" }));
    for (const column of data.slice(1)) {
      let value = column[i];
      // One series may have been sampled between the moments of another.
      for (let j = i; value === undefined && j >= 0 && j > i - 4; j--) value = column[j];
      row.append(made("td", write(value), { className: "num" }));
    }
  }
  if (!seen.length) body.insertRow().append(made("td", "No samples yet", { colSpan: heads.length }));
  if (!marks.length) return [table];
  const list = document.createElement("ul");
  list.append(...marks.map((mark) => made("li", mark)));
  return [made("p", "User actions", { className: "table-title" }), list, table];
}
