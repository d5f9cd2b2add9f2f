// A screen's token stands behind the # of its address, which browsers send to nobody. It leaves the address bar before anything else.

const form = document.querySelector("[data-kiosk]");
const token = decodeURIComponent(location.hash.slice(1));
if (token) {
  history.replaceState(null, "", location.pathname);
  form.elements.token.value = token;
  if (form.dataset.kiosk === "go") form.requestSubmit();
}
