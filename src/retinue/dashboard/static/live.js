// Reads the page again when the hub says that something changed, and changes only what differs.

const main = document.getElementById("main");
const connection = document.getElementById("connection");
// One host can have several hubs, below different prefixes; each has a stream of its own.
const shared = `retinue-live ${document.documentElement.dataset.root}`;
let source = null;
let channel = null;
let leaving = null;
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
    if (fresh && !busy) {
      const focused = document.activeElement;
      morph(main, fresh);
      // an element that moved has lost the focus
      if (focused !== document.activeElement && main.contains(focused)) focused.focus({ preventScroll: true });
    }
  } finally {
    reading = false;
  }
}

function say(state, text) {
  document.documentElement.dataset.state = state;
  connection.textContent = text;
}

function hear(news) {
  if (document.hidden) return;
  if (news === "lost") say("lost", "the hub does not answer");
  else if (news === "tick") read().catch(() => hear("lost"));
  else if (news === "open") {
    if (document.documentElement.dataset.state === "lost") read().catch(() => hear("lost"));
    say("live", "live");
  } else if (news === "ask" && source?.readyState === EventSource.OPEN) channel.postMessage("open");
}

function tell(news) {
  hear(news);
  channel?.postMessage(news);
}

function open() {
  source = new EventSource(`${document.documentElement.dataset.root}/live`);
  source.onopen = () => tell("open");
  source.onmessage = () => tell("tick");
  source.onerror = () => tell("lost");
}

// A browser opens six connections to a host: of the visible pages one holds a stream and tells the others.
// Pages of a plain http address that is not this machine have no locks; each of them has its own stream.
function join() {
  if (!channel) {
    open();
    return;
  }
  leaving = new AbortController();
  const { signal } = leaving;
  const lead = () => new Promise((resolve) => {
    open();
    signal.addEventListener("abort", resolve);
  });
  navigator.locks.request(shared, { signal }, lead).catch(() => {});
  channel.postMessage("ask");
}

function leave() {
  source?.close();
  source = null;
  leaving?.abort();
}

if (main && main.hasAttribute("data-live")) {
  if (navigator.locks && "BroadcastChannel" in window) {
    channel = new BroadcastChannel(shared);
    channel.onmessage = (message) => hear(message.data);
  }
  document.addEventListener("visibilitychange", () => {
    leave();
    if (!document.hidden) {
      join();
      read().catch(() => hear("lost"));
    }
  });
  // a page that is kept for the back button must not keep the stream of the others
  window.addEventListener("pagehide", leave);
  window.addEventListener("pageshow", (event) => event.persisted && !document.hidden && join());
  if (!document.hidden) join();
}
