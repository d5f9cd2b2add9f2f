// Shortcuts of single keys. They can be switched off (on the help page), and never act while somebody types.

const place = (key) => document.querySelector(`.nav [data-key="${CSS.escape(key)}"]`)?.href;
const PREFIX_MS = 1500;

const read = () => { try { return localStorage.getItem("kennel-keys") !== "off"; } catch { return true; } };
let on = read();
let prefixAt = -Infinity;

for (const place of document.querySelectorAll("[data-keys-switch]")) {
  const box = place.querySelector("[data-keys-on]");
  place.hidden = false;
  box.checked = on;
  box.addEventListener("change", () => {
    on = box.checked;
    try { localStorage.setItem("kennel-keys", on ? "on" : "off"); } catch { /* for this page only */ }
  });
}

document.addEventListener("keydown", (event) => {
  if (!on || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.target.closest("input, select, textarea, [contenteditable]")) return;
  const second = performance.now() - prefixAt < PREFIX_MS;
  prefixAt = -Infinity;
  if (second && place(event.key)) location.assign(place(event.key));
  else if (event.key === "g") prefixAt = performance.now();
  else if (event.key === "/") document.getElementById("find")?.focus();
  else if (event.key === "?") location.assign("/help/");
  else if (event.key === "p") {
    const rate = document.querySelector("[data-live-rate]");
    if (!rate) return;
    rate.value = rate.value === "paused" ? "0" : "paused";
    rate.dispatchEvent(new Event("change"));
  } else return;
  if (event.key !== "g" || second) event.preventDefault();
});
