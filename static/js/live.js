// Keeps a page current: swaps regions as the socket sends them, tells how old each panel is, and how the connection does.

import { ago, countDown, heard, now, writeMoments } from "./times.js";

const STALE_SECONDS = 6;
const LINK_GRACE_SECONDS = 2;
const HIDDEN_SECONDS = 30;
const SELF_HEALING = [1006, 1011, 1012, 1013]; // the ws extension reconnects after these by itself
const SIGNED_OUT = [4401, 4403];

const stage = document.querySelector("[data-stage]");
const live = document.querySelector("[data-live]");
const lost = document.querySelector("[data-reconnect]");
const pending = new Map();
const link = { socket: null, wrapper: null, up: false, downSince: performance.now(), nextTry: null, failures: 0, asleep: false };
let pulse = null;
let rate = "0";
let flushTimer = null;
let keeper = null;

// --- swapping ------------------------------------------------------------------------------------------------------

// What a reader typed, ticked, opened or asked for is theirs; moments that did not change keep the text written here.
// Not `ignoreActiveValue`: it would leave a focused button with the word of one state and the action of the next.
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node, kind) =>
  !((["value", "checked"].includes(name) && node.matches("input:not([type=hidden]), textarea")) || (name === "selected" && node.matches("option")) || (name === "open" && node.matches("details")) || (name === "title" && kind === "remove" && node.matches("time")));
Idiomorph.defaults.callbacks.beforeNodeMorphed = (before, after) =>
  !before.dataset?.hasOwnProperty("asked") && !(before.nodeName === "TIME" && after.nodeName === "TIME" && before.dateTime === after.dateTime && before.dataset.moment === after.dataset.moment);

// Idiomorph's own extension takes every kind of swap for one of the whole element, so that #notice landed within #notice.
htmx.defineExtension("morph", {
  isInlineSwap: (style) => style === "morph",
  handleSwap: (style, target, fragment) => style === "morph" && Idiomorph.morph(target, fragment.children),
});

function collect(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  for (const element of holder.content.children) {
    if (element.id) pending.set(element.id, element);
  }
}

function flush() {
  clearTimeout(flushTimer);
  flushTimer = null;
  for (const [id, fresh] of pending) {
    const shown = document.getElementById(id);
    if (!shown) continue;
    fresh.removeAttribute("hx-swap-oob");
    Idiomorph.morph(shown, fresh);
    htmx.process(document.getElementById(id));
  }
  pending.clear();
  settled();
}

function schedule() {
  if (rate === "paused" || document.hidden || flushTimer !== null) return;
  if (rate === "0") flush();
  else flushTimer = setTimeout(flush, Number(rate) * 1000);
}

function settled() {
  readPulse();
  tick();
  writeMoments();
  // The pressed button may be gone with the state it belonged to: stay in its card.
  if (keeper && document.activeElement === document.body) document.getElementById(keeper)?.focus({ preventScroll: true });
}

for (const kind of ["focusin", "pointerdown"]) {
  document.addEventListener(kind, (event) => { keeper = event.target.closest?.("[data-focus-keeper]")?.id ?? null; });
}

function readPulse(at) {
  const text = document.getElementById("region-pulse")?.textContent;
  if (!text || text === pulse?.text) return;
  pulse = { text, ...JSON.parse(text) };
  heard(pulse.now, at);
  document.title = `${pulse.alerts ? `(${pulse.alerts}) ` : ""}${document.title.replace(/^\(\d+\) /, "")}`;
  document.dispatchEvent(new CustomEvent("kennel:pulse", { detail: pulse }));
}

// --- ages and the state of the connection --------------------------------------------------------------------------

function tick() {
  const down = link.up || !live ? 0 : (performance.now() - link.downSince) / 1000;
  for (const panel of document.querySelectorAll("[data-panel]")) {
    const asOf = pulse?.as_of[panel.dataset.panel];
    const age = asOf == null ? null : now() - asOf;
    const unread = pulse?.unreachable && panel.dataset.panel !== "workers"; // workers report themselves
    const stale = age === null || age > STALE_SECONDS || unread || down > LINK_GRACE_SECONDS;
    panel.toggleAttribute("data-stale", stale);
    const label = panel.querySelector("[data-age]");
    if (label) label.textContent = age === null ? "not read yet" : `${stale ? "as of" : "updated"} ${ago(age)}`;
  }
  if (!live) return;
  const state = rate === "paused" ? "paused" : link.up ? "on" : down > LINK_GRACE_SECONDS ? "off" : "connecting";
  live.dataset.state = state;
  live.querySelector("[data-live-word]").textContent = { on: "Live", off: "Not connected", paused: "Paused", connecting: "Connecting" }[state];
  lost.hidden = link.up || link.asleep || down <= LINK_GRACE_SECONDS;
  stage.toggleAttribute("data-off", !lost.hidden);
  if (lost.hidden) return;
  lost.querySelector("[data-reconnect-age]").textContent = "Data is stale; workers are unaffected.";
  const wait = link.nextTry === null ? 0 : Math.ceil((link.nextTry - performance.now()) / 1000);
  lost.querySelector("[data-reconnect-count]").textContent = wait > 0 ? `Trying again in ${wait} s.` : "Trying …";
}

function reconnectDelay(failures) {
  link.failures = failures + 1;
  const delay = Math.min(8000, 500 * 2 ** Math.min(failures, 4)) * (0.5 + Math.random() / 2);
  link.nextTry = performance.now() + delay;
  return delay;
}

// A refused handshake looks like a broken line: ask whether somebody is still signed in.
async function askWhetherSignedOut() {
  try {
    const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" });
    if (answer.type === "opaqueredirect") location.reload();
  } catch { /* nobody answers: it is the line after all */ }
}

function reconnect() {
  link.nextTry = null;
  if (link.wrapper) link.wrapper.reconnect(); else location.reload();
}

if (stage?.hasAttribute("ws-connect")) {
  live.hidden = false;
  htmx.config.wsReconnectDelay = reconnectDelay;
  htmx.createWebSocket = (url) => (link.socket = new WebSocket(url));

  document.addEventListener("htmx:wsConnecting", () => { link.nextTry = null; });
  document.addEventListener("htmx:wsOpen", (event) => {
    link.wrapper = event.detail.socketWrapper;
    link.up = true;
    link.failures = 0;
    tick();
  });
  document.addEventListener("htmx:wsBeforeMessage", (event) => {
    event.preventDefault();
    collect(event.detail.message);
    schedule();
  });
  document.addEventListener("htmx:wsClose", (event) => {
    const closed = event.detail.event;
    if (closed.target !== link.socket) return; // an older one, already replaced
    if (link.up) link.downSince = performance.now();
    link.up = false;
    if (link.failures > 1) askWhetherSignedOut();
    if (SIGNED_OUT.includes(closed.code)) location.reload();
    else if (!SELF_HEALING.includes(closed.code) && !link.asleep) setTimeout(reconnect, reconnectDelay(link.failures));
    tick();
  });

  document.querySelector("[data-reconnect-now]").addEventListener("click", reconnect);
  document.querySelector("[data-live-rate]").addEventListener("change", (event) => {
    rate = event.target.value;
    clearTimeout(flushTimer);
    flushTimer = null;
    if (rate !== "paused") flush();
    tick();
  });

  let sleep = null;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(sleep);
    if (document.hidden) {
      sleep = setTimeout(() => { link.asleep = true; link.socket?.close(1000); }, HIDDEN_SECONDS * 1000);
    } else if (link.asleep) {
      link.asleep = false;
      link.downSince = performance.now();
      reconnect();
    } else if (rate !== "paused") {
      flush();
    }
  });
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}

// --- answers to actions --------------------------------------------------------------------------------------------

const NOTICE_SECONDS = 8;
const noticePlace = document.getElementById("notice");

// Good news goes by itself; bad news stays until it is put away.
function dress() {
  for (const line of noticePlace.querySelectorAll(".banner:not([data-dressed])")) {
    line.dataset.dressed = "";
    const close = Object.assign(document.createElement("button"), { type: "button", className: "close", textContent: "✕" });
    close.setAttribute("aria-label", "Dismiss");
    close.addEventListener("click", () => line.remove());
    line.append(close);
    if (line.classList.contains("tone-green")) setTimeout(() => line.remove(), NOTICE_SECONDS * 1000);
  }
}
dress();
// What came with the page stands at its top; what comes later floats, so that nothing jumps.
new MutationObserver(() => {
  noticePlace.toggleAttribute("data-floating", noticePlace.querySelector(".banner") !== null);
  dress();
}).observe(noticePlace, { childList: true });

function notice(text) {
  const place = noticePlace;
  const line = document.createElement("p");
  line.className = "banner tone-red";
  line.append(Object.assign(document.createElement("span"), { textContent: text }));
  place.replaceChildren(line);
}

// The second click of a double click may meet what the first one brought there: it never acts.
document.addEventListener("click", (event) => {
  if (event.detail > 1 && event.target.closest("form[method=post] button, .gate summary")) {
    event.preventDefault();
    event.stopPropagation();
  }
}, true);

document.addEventListener("htmx:responseError", (event) => {
  const code = event.detail.xhr.status;
  notice(code === 403 ? "You are not allowed to do this. Nothing changed; the attempt is in the audit." : `The dashboard answered ${code}. Check the audit before you try again.`);
});
document.addEventListener("htmx:sendError", () => notice("No answer from the dashboard. It is unknown whether the action was carried out; check the audit before you try again."));
document.addEventListener("htmx:beforeSwap", (event) => {
  if (new URL(event.detail.xhr.responseURL || location.href).pathname.startsWith("/accounts/login")) {
    event.detail.shouldSwap = false;
    location.reload();
  }
});
document.addEventListener("htmx:afterSettle", settled);
document.addEventListener("kennel:look", () => writeMoments());

readPulse(performance.getEntriesByType("navigation")[0]?.responseStart);
tick();
writeMoments();
setInterval(() => { writeMoments(); tick(); }, 1000);
setInterval(() => { if (!document.hidden) countDown(); }, 250);
