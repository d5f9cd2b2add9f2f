// The words of the scripts, in the language of the page: `say("Trying again in {seconds} s.", {seconds: 3})`.
// The English text is its own key; dashboard/core/js_strings.py lists all of them for the translators.

const translated = JSON.parse(document.getElementById("words")?.textContent || "{}");

export function say(text, values = {}) {
  return (translated[text] ?? text).replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
