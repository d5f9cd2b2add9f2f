// The demo's guided tour. Its step stays in this browser; 0 means that it has ended.

const KEY = "kennel-tour";
const tour = document.querySelector("[data-tour]");
const keep = (step) => { try { localStorage.setItem(KEY, step); } catch { /* private window: the tour begins again on each page */ } };

function stepNow() {
  try { return Number(localStorage.getItem(KEY) ?? 1); } catch { return 1; }
}

const current = tour?.querySelector(`[data-tour-step="${stepNow()}"]`);
if (current) {
  tour.hidden = current.hidden = false;
  current.querySelector("[data-tour-next]")?.addEventListener("click", () => keep(stepNow() + 1));
  for (const end of tour.querySelectorAll("[data-tour-end]")) {
    end.addEventListener("click", () => { keep(0); tour.hidden = true; });
  }
}
