// The search field as a palette: Ctrl K (or /) leads to it, what is found appears while one types, arrows and Enter choose.
// Without this script the field is a form that leads to the search page.

const field = document.getElementById("find");
const list = document.getElementById("found");
const WAIT_MS = 150;
const GAP_PX = 8;
const WIDTH_PX = 400;
let timer = 0;
let asked = 0;

const links = () => [...list.querySelectorAll("a")];
const isOpen = () => list.matches(":popover-open");

function show(open) {
  if (open === isOpen()) return;
  if (!open) {
    list.hidePopover();
    return;
  }
  const place = field.getBoundingClientRect();
  list.style.top = `${place.bottom + GAP_PX}px`;
  list.style.left = `${Math.max(GAP_PX, Math.min(place.left, innerWidth - WIDTH_PX))}px`;
  list.showPopover();
}

async function ask() {
  const q = field.value.trim();
  asked += 1;
  const mine = asked;
  if (!q) {
    show(false);
    return;
  }
  const answer = await fetch(`${field.form.action}?${new URLSearchParams({ q, list: "1" })}`).catch(() => null);
  if (!answer?.ok || answer.redirected || mine !== asked) return;
  const text = await answer.text();
  if (mine !== asked) return;
  list.innerHTML = text;
  show(true);
}

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  event.preventDefault();
  field?.focus();
  field?.select();
});

if (field && list) {
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, WAIT_MS);
  });
  field.form.addEventListener("keydown", (event) => {
    if (event.isComposing || !isOpen()) return;
    const found = links();
    const at = found.indexOf(document.activeElement);
    if (event.key === "Escape") {
      field.focus();
      show(false);
    } else if (event.key === "ArrowDown") (found[at + 1] ?? found[0])?.focus();
    else if (event.key === "ArrowUp") (found[at - 1] ?? field).focus();
    else return;
    event.preventDefault();
  });
  field.form.addEventListener("focusout", (event) => {
    if (!field.form.contains(event.relatedTarget)) show(false);
  });
}
