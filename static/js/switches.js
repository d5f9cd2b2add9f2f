// The switches of theme and time zone. What is chosen stays in this browser; theme.js puts it on before the first paint.

const THEMES = ["system", "dark", "light"];
const THEME_WORDS = { system: "auto", dark: "dark", light: "light" };
const root = document.documentElement;
const keep = (key, value) => { try { localStorage.setItem(key, value); } catch { /* private window: for this page only */ } };

function told(selector, word, title, press) {
  for (const button of document.querySelectorAll(selector)) {
    const tell = () => {
      button.querySelector("span").textContent = word();
      button.title = title();
      button.setAttribute("aria-label", title());
    };
    button.hidden = false;
    button.addEventListener("click", () => { press(); tell(); document.dispatchEvent(new Event("kennel:look")); });
    tell();
  }
}

const theme = () => root.dataset.theme ?? "system";
told("[data-theme-switch]", () => `Theme: ${THEME_WORDS[theme()]}`, () => `Theme: ${THEME_WORDS[theme()]}. Press to change.`, () => {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme; else root.dataset.theme = next;
  keep("kennel-theme", next);
});

const utc = () => root.dataset.zone !== "local";
told("[data-zone-switch]", () => (utc() ? "UTC" : "Local"), () => (utc() ? "Times: UTC. Press to change." : "Times: your local time. Press to change."), () => {
  root.dataset.zone = utc() ? "local" : "utc";
  keep("kennel-zone", root.dataset.zone);
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("kennel:look")));

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}
