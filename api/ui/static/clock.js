// The governor's clock, and everything on the page that grows older.

import { say } from "./dom.js";
import { shortSpan, span } from "./format.js";

let aheadMs = 0;
let frozenAtMs = null;

/** The governor's clock says `unixMs` now; the reader's own may be wrong. */
export function adjust(unixMs) {
  aheadMs = unixMs - Date.now();
}

/** What is shown is not live any more: ages stay as they are. Null: they go on. */
export function freeze(unixMs) {
  frozenAtMs = unixMs;
}

/** Now, by the governor's clock, in Unix milliseconds; the last moment of which anything is known while it is frozen. */
export function now() {
  return frozenAtMs ?? Date.now() + aheadMs;
}

/** Now, whatever is frozen. */
export function really() {
  return Date.now() + aheadMs;
}

const ticking = new Map();

/** Lets an element show how long ago `sinceMs` is, from now on; null: it shows nothing. */
export function tick(element, sinceMs, { short = false } = {}) {
  if (sinceMs === null) {
    ticking.delete(element);
    say(element, "");
    return;
  }
  ticking.set(element, { sinceMs, short });
  tell(element, sinceMs, short);
}

/** Shows every age anew. What is on the page no more is forgotten. */
export function tickAll() {
  for (const [element, { sinceMs, short }] of ticking) {
    if (!element.isConnected) ticking.delete(element);
    else if (isNear(element)) tell(element, sinceMs, short);
  }
}

function tell(element, sinceMs, short) {
  const ms = now() - sinceMs;
  say(element, short ? shortSpan(ms) : span(ms));
}

// Ages far outside of what is looked at may stand still: a page of a hundred identities has thousands of them.
const far = new WeakSet();
const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) far.delete(entry.target);
      else far.add(entry.target);
    }
  },
  { rootMargin: "300px" },
);

/** The ages within this element tick only while it is near to what is looked at. */
export function watch(element) {
  element.setAttribute("data-watched", "");
  watcher.observe(element);
}

/** The element is gone. */
export function unwatch(element) {
  watcher.unobserve(element);
}

function isNear(element) {
  const watched = element.closest("[data-watched]");
  return watched === null || !far.has(watched);
}
