// Runs before the first paint so that the chosen theme never flashes; switches.js changes it.
(() => {
  "use strict";
  const read = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const root = document.documentElement;
  const theme = read("kennel-theme");
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  root.dataset.zone = read("kennel-zone") === "local" ? "local" : "utc";
  root.dataset.js = "";
})();
