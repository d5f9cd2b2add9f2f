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

const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function parts(date, utc) {
  const get = (part) => (utc ? date[`getUTC${part}`]() : date[`get${part}`]());
  const seconds = get("Seconds") ? `:${pad(get("Seconds"))}` : "";
  return {
    day: `${WEEKDAYS[get("Day")]} ${get("Date")} ${MONTHS[get("Month")]} ${get("FullYear")}`,
    clock: `${pad(get("Hours"))}:${pad(get("Minutes"))}${seconds}`,
  };
}

// A moment to come, in both zones, and how long until then: nobody opens a gate twelve hours off.
function planned(date, present) {
  const [there, here] = [parts(date, true), parts(date, false)];
  const own = there.day === here.day ? here.clock : `${here.day} ${here.clock}`;
  const zones = date.getTimezoneOffset() === 0 ? "" : ` (${own} your time)`;
  const s = Math.floor(date.getTime() / 1000 - present);
  return `${there.day} ${there.clock} UTC${zones}${s > 0 ? `, in ${ahead(s)}` : ""}`;
}

function ahead(s) {
  for (const [size, unit, smaller, below] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (s < size) continue;
    const rest = Math.floor((s % size) / smaller);
    return `${Math.floor(s / size)} ${unit}${rest ? ` ${rest} ${below}` : ""}`;
  }
  return `${s} s`;
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
    const said = style === "since" ? ago(age) : style === "uptime" ? span(age) : style === "planned" ? planned(date, present) : written(date, style);
    if (style !== "ends" && element.textContent !== said) element.textContent = said;
    if (style !== "full" && style !== "planned") element.title = written(date, "full");
  }
  countDown(within);
}
