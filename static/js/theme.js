// Runs before the first paint so that the chosen theme never flashes. Choices stay in this browser.
(() => {
  "use strict";
  const THEMES = ["system", "dark", "light"];
  const read = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const keep = (key, value) => { try { localStorage.setItem(key, value); } catch { /* private window: for this page only */ } };
  const root = document.documentElement;
  let theme = THEMES.includes(read("kennel-theme")) ? read("kennel-theme") : "system";
  let zone = read("kennel-zone") === "local" ? "local" : "utc";

  const wear = () => {
    if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
    root.dataset.zone = zone;
    root.dataset.js = "";
  };
  wear();

  document.addEventListener("DOMContentLoaded", () => {
    const told = (selector, word, title, press) => {
      for (const button of document.querySelectorAll(selector)) {
        const say = () => {
          button.querySelector("span").textContent = word();
          button.title = title();
          button.setAttribute("aria-label", title());
        };
        button.hidden = false;
        button.addEventListener("click", () => { press(); wear(); say(); document.dispatchEvent(new Event("kennel:look")); });
        say();
      }
    };
    told("[data-theme-switch]", () => ({ system: "Auto", dark: "Dark", light: "Light" })[theme], () => `Theme: ${theme}. Press to change.`, () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      keep("kennel-theme", theme);
    });
    told("[data-zone-switch]", () => (zone === "utc" ? "UTC" : "Local"), () => `Times: ${zone === "utc" ? "UTC" : "your local time"}. Press to change.`, () => {
      zone = zone === "utc" ? "local" : "utc";
      keep("kennel-zone", zone);
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("kennel:look")));
})();
