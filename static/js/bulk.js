// Ticked boxes: how many, all at once, and from a box to the buttons with Enter. The boxes themselves outlive live updates.

const bar = document.getElementById("bulk");
if (bar) {
  const all = bar.querySelector("[data-tick-all]");
  const allBox = all.querySelector("input");
  const count = bar.querySelector("[data-tick-count]");
  const boxes = () => [...document.querySelectorAll("input.tick")];
  const tell = () => {
    const ticked = boxes().filter((box) => box.checked).length;
    const said = ticked ? `${ticked} selected` : "Select rows for bulk actions.";
    if (count.textContent !== said) count.textContent = said;
    allBox.checked = ticked > 0 && ticked === boxes().length;
    allBox.indeterminate = ticked > 0 && ticked < boxes().length;
    bar.toggleAttribute("data-ticked", ticked > 0);
  };
  all.hidden = false;
  allBox.addEventListener("change", () => { for (const box of boxes()) box.checked = allBox.checked; tell(); });
  document.addEventListener("change", (event) => { if (event.target.matches("input.tick")) tell(); });
  document.addEventListener("kennel:pulse", tell);
  // Enter would press the first button; it leads there instead.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.target.matches("input.tick")) return;
    event.preventDefault();
    bar.querySelector("button").focus();
  });
  tell();
}
