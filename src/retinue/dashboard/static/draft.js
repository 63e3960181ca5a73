// Checks a draft a moment after the last key, and leads from a problem to its line.

const PAUSE_MS = 400;
const form = document.querySelector("form[data-draft]");
const text = document.getElementById("text");
let timer = 0;
let isAsking = false;
let isStale = false;

// form.action would be the buttons of that name
async function check() {
  // a reply may take seconds, and the next request waits for it
  isStale = isAsking;
  if (isAsking) return;
  isAsking = true;
  try {
    const body = new URLSearchParams(new FormData(form));
    body.set("action", "check");
    const reply = await fetch(form.getAttribute("action"), { method: "POST", body, headers: { accept: "text/html" } });
    if (reply.redirected || !reply.ok) return;
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    const fresh = page.getElementById("checked");
    if (fresh && !isStale) document.getElementById("checked").replaceChildren(...fresh.childNodes);
  } finally {
    isAsking = false;
    if (isStale) check().catch(() => {});
  }
}

function show(line) {
  const lines = text.value.split("\n");
  const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  text.focus();
  text.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
  text.scrollTop = (text.scrollHeight / Math.max(lines.length, 1)) * Math.max(0, line - 4);
}

form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => check().catch(() => {}), PAUSE_MS);
});
form.addEventListener("click", (event) => {
  const line = event.target.dataset?.line;
  if (!line) return;
  event.preventDefault();
  show(Number(line));
});
