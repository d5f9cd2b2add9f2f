// Server time without trusting this machine's clock, ages, and moments in the reader's zone.

let serverNow = null;
let heardAt = 0;

export function heard(now, at = performance.now()) {
  serverNow = now;
  heardAt = at;
}

export function now() {
  return serverNow === null ? Date.now() / 1000 : serverNow + (performance.now() - heardAt) / 1000;
}

export function ago(seconds) {
  return `${span(seconds)} ago`;
}

function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  const [h, min] = [Math.floor(s / 3600), Math.floor((s % 3600) / 60)];
  if (s < 86400) return `${h} h ${min} min`;
  return `${Math.floor(s / 86400)} d`;
}

const pad = (n) => String(n).padStart(2, "0");

function written(date, style) {
  const local = document.documentElement.dataset.zone === "local";
  const get = (part) => (local ? date[`get${part}`]() : date[`getUTC${part}`]());
  const clock = `${pad(get("Hours"))}:${pad(get("Minutes"))}:${pad(get("Seconds"))}`;
  const day = `${get("FullYear")}-${pad(get("Month") + 1)}-${pad(get("Date"))} `;
  return (style === "clock" ? "" : day) + clock + (local ? "" : " UTC");
}

// Whole seconds that are left for certain. What is stale is no countdown: its holder may have renewed long since.
const left = (at, present) => Math.max(0, Math.floor(at - present));
const isStale = (element) => element.closest("[data-stale]") !== null;

export function countDown(within = document) {
  const present = now();
  for (const element of within.querySelectorAll("time[data-moment=ends]")) {
    const date = new Date(element.dateTime);
    const s = left(date.getTime() / 1000, present);
    const said = isStale(element) ? written(date, "clock") : `in ${s} s`;
    if (element.textContent !== said) element.textContent = said;
  }
  for (const element of within.querySelectorAll("progress[data-ends]")) {
    element.hidden = isStale(element);
    element.value = Math.max(0, element.dataset.ends - present);
  }
}

export function writeMoments(within = document) {
  const present = now();
  for (const element of within.querySelectorAll("time[data-moment]")) {
    const date = new Date(element.dateTime);
    const style = element.dataset.moment;
    const age = present - date.getTime() / 1000;
    const said = style === "since" ? ago(age) : style === "uptime" ? span(age) : written(date, style);
    if (style !== "ends" && element.textContent !== said) element.textContent = said;
    if (style !== "full") element.title = written(date, "full");
  }
  countDown(within);
}
