// Reads the page again when the hub says that something changed, and changes only what differs.

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let source = null;
let reading = false;

function parse(text) {
  return new DOMParser().parseFromString(text, "text/html");
}

function keyOf(node) {
  return node.nodeType === 1 ? node.dataset?.key ?? node.id ?? "" : "";
}

function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return;
  }
  if (from.nodeType === 3) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  if (from.nodeType !== 1) return;
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
  }
  const kept = new Map([...from.children].map((child) => [keyOf(child), child]));
  let at = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = keyOf(wanted);
    const known = key ? kept.get(key) : at;
    const fits = known && known.nodeName === wanted.nodeName && keyOf(known) === key;
    if (!fits) {
      from.insertBefore(wanted, at);
      continue;
    }
    if (known !== at) from.insertBefore(known, at);
    else at = at.nextSibling;
    morph(known, wanted);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

async function read() {
  if (reading) return;
  reading = true;
  try {
    const reply = await fetch(location.href, { headers: { accept: "text/html" } });
    if (reply.redirected || !reply.ok) {
      location.reload();
      return;
    }
    const fresh = parse(await reply.text()).getElementById("main");
    const busy = main.contains(document.activeElement) && document.activeElement.matches("input, textarea, select");
    if (fresh && !busy) morph(main, fresh);
  } finally {
    reading = false;
  }
}

function say(state, text) {
  document.documentElement.dataset.state = state;
  connection.textContent = text;
}

function open() {
  source = new EventSource(`${document.documentElement.dataset.root}/live`);
  source.onopen = () => {
    if (document.documentElement.dataset.state === "lost") read();
    say("live", "live");
  };
  source.onmessage = () => read().catch(() => say("lost", "the hub does not answer"));
  source.onerror = () => say("lost", "the hub does not answer");
}

function close() {
  source?.close();
  source = null;
}

if (main && main.hasAttribute("data-live")) {
  // a browser opens six connections to a host: a hidden page gives its own back
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (!source) {
      open();
      read().catch(() => say("lost", "the hub does not answer"));
    }
  });
  if (!document.hidden) open();
}
