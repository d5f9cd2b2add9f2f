// The search field as a palette: Ctrl K (or /) leads to it, what is found appears while one types, arrows and Enter choose.
// Without this script the field is a form that leads to the search page.

const field = document.getElementById("find");
const list = document.getElementById("found");
const WAIT_MS = 150;
let timer = 0;
let asked = 0;

const links = () => [...list.querySelectorAll("a")];
const show = (open) => { list.hidden = !open; };

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
    if (event.isComposing || list.hidden) return;
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
