// Puts the page together: who is signed in, what is known, what is shown.

import { planEntrance, planRelease, planReload, planRestart, planRestartAll } from "./acts.js";
import { ask, sentence } from "./api.js";
import { Audit } from "./audit.js";
import { Card } from "./card.js";
import { legend } from "./cells.js";
import { adjust, freeze, now, really, tickAll } from "./clock.js";
import { Dialog } from "./dialog.js";
import { byId, follow, mark, say, sayOrHide, show } from "./dom.js";
import { Feed } from "./feed.js";
import { count, cut, listed, moment, span } from "./format.js";
import { updateOverview } from "./overview.js";
import { Recent } from "./recent.js";
import { troubles } from "./states.js";

const TOKEN_KEY = "governor.adminToken";
const PAGE_MS = 2_000;
const NEWS_MS = 5_000;
/** Showing a state may take a quarter of the time at the most. */
const REST_FACTOR = 3;
/** With more identities than these each shows less of itself. */
const CROWD = 24;
const ACTS = new Set(["forced_restart", "claim_released", "drained", "undrained", "reloaded"]);

let token = "";
let feed = null;
let connection = { kind: "closed", reason: "", retryAtMs: null };
let aliveAtMs = 0;
let frame = null;
let page = null; // what is shown instead of the first page of identities: {after, from, frame, closing}
let shownFrame = null;
let drawing = null;
let restUntilMs = 0;
let told = "";
let newsTimer = null;
let hasJustEntered = false;

const recent = new Recent();
/** @type {Map<string, Card>} */
const cards = new Map();
const dialog = new Dialog(
  () => token,
  () => audit.update(),
);
const audit = new Audit(() => token);

// Signing in and out

function signIn(given, keep) {
  token = given;
  store(keep ? given : null);
  feed?.close();
  feed = new Feed(given, {
    state: (next) => takeState(next),
    events: (events, fresh) => takeEvents(events, fresh),
    connection: (next) => takeConnection(next),
    refused: (why) => signOut(why),
    clock: adjust,
    alive: () => {
      aliveAtMs = really();
    },
  });
  show(byId("sign-in"), false);
  feed.run();
}

function signOut(why = null) {
  feed?.close();
  feed = null;
  token = "";
  store(null);
  turnPage(null);
  frame = shownFrame = null;
  recent.take([], true);
  clear();
  dialog.close();
  takeConnection({ kind: "closed", reason: "", retryAtMs: null });
  show(byId("live"), false);
  show(byId("acts"), false);
  show(byId("mode"), false);
  show(byId("sign-in"), true);
  sayOrHide(byId("sign-in-error"), why);
  byId("token").focus();
}

function store(given) {
  try {
    if (given === null) sessionStorage.removeItem(TOKEN_KEY);
    else sessionStorage.setItem(TOKEN_KEY, given);
  } catch {
    // The browser keeps nothing for pages: the token is asked for again.
  }
}

function stored() {
  try {
    return sessionStorage.getItem(TOKEN_KEY);
  } catch {
    return null;
  }
}

// What comes in

function takeState(next) {
  frame = next;
  if (page !== null && next.nextAfter === undefined) turnPage(null);
  scheduleDraw();
}

function takeEvents(events, fresh) {
  recent.take(events, fresh);
  if (events.some((event) => ACTS.has(event.kind))) audit.update();
  scheduleDraw();
}

function takeConnection(next) {
  // While one attempt after the other fails it stays lost.
  const kind = next.kind === "connecting" && connection.kind === "lost" ? "lost" : next.kind;
  connection = { ...next, kind };
  const isLive = kind === "live" || kind === "polled";
  freeze(isLive || frame === null ? null : aliveAtMs);
  const pill = byId("connection");
  mark(pill, { connection: kind });
  say(
    pill,
    { closed: "Signed out", connecting: "Connecting…", live: "Live", polled: "Asked every 2 s", lost: "Not live" }[
      kind
    ],
  );
  mark(document.body, { connection: kind });
  drawBanner();
  drawTitle();
}

function clear() {
  for (const card of cards.values()) card.gone();
  cards.clear();
  for (const id of ["cards", "events", "audit-entries"])
    follow(
      byId(id),
      [],
      String,
      () => null,
      () => {},
    );
}

// Drawing

function scheduleDraw() {
  if (drawing !== null) return;
  const restMs = Math.max(0, restUntilMs - performance.now());
  drawing = setTimeout(() => requestAnimationFrame(draw), restMs);
  drawTitle(); // a page in the background draws nothing, but its title can be seen
}

function draw() {
  drawing = null;
  const beganMs = performance.now();
  if (frame !== null) {
    show(byId("live"), true);
    if (hasJustEntered) byId("main").focus({ preventScroll: true }); // the form that had the focus is gone
    hasJustEntered = false;
    show(byId("acts"), true);
    const isClosed = frame.draining || frame.stopping;
    show(byId("mode"), isClosed);
    say(byId("mode"), frame.stopping ? "Stopping" : "Draining");
    say(byId("act-drain"), frame.draining ? "Undrain…" : "Drain…");
    shownFrame = page?.frame ?? frame;
    mark(document.body, { draining: frame.draining, stopping: frame.stopping, atMs: shownFrame.atMs });
    const wrong = updateOverview(frame, cards);
    drawCards();
    recent.show(byId("events"), byId("events-more"), byId("kinds").value);
    drawPager();
    dialog.stateChanged(frame);
    announce(wrong);
  }
  const tookMs = performance.now() - beganMs;
  restUntilMs = performance.now() + tookMs * REST_FACTOR;
}

function drawCards() {
  const wanted = byId("filter").value.trim().toLowerCase();
  const onlyProblems = byId("only-problems").checked;
  const shown = shownFrame.identities.filter((identity) => {
    const names = [identity.id, identity.model, ...identity.names];
    return (
      names.some((each) => each.toLowerCase().includes(wanted)) && (!onlyProblems || troubles(identity).length > 0)
    );
  });
  const known = new Set(shownFrame.identities.map((identity) => identity.id));
  for (const [id, card] of cards) {
    if (!known.has(id)) {
      card.gone();
      cards.delete(id);
    }
  }
  const { atMs } = shownFrame;
  const crowded = shownFrame.identities.length > CROWD;
  follow(
    byId("cards"),
    shown,
    (identity) => identity.id,
    (identity) => cardOf(identity).element,
    (_, identity) => {
      const card = cardOf(identity);
      const epochs = recent.epochs(identity.id);
      const seen = JSON.stringify([identity, epochs.length, crowded], ageless);
      if (card.seen === seen) return;
      card.seen = seen;
      card.update(identity, atMs, epochs, crowded);
    },
  );
  show(byId("nothing"), shown.length === 0 && shownFrame.identities.length > 0);
}

/** Ages need no drawing: they tick. Of a reading the age counts, to the second. */
function ageless(key, value) {
  if (key === "reading" && value !== null) return { ...value, at: Math.round((shownFrame.atMs - value.ageMs) / 1000) };
  if (key.endsWith("AgeMs")) return value !== null;
  return key === "ageMs" ? undefined : value;
}

function cardOf(identity) {
  let card = cards.get(identity.id);
  if (card === undefined) {
    card = new Card(identity, {
      restart: ({ id }) => dialog.open(() => planRestart(token, id)),
      release: ({ id }, claim) => dialog.open(() => planRelease(token, id, claim.id)),
    });
    cards.set(identity.id, card);
  }
  return card;
}

function drawBanner() {
  const lost = connection.kind === "lost";
  show(byId("banner"), lost);
  if (!lost) return;
  const known = frame === null ? "Nothing is known yet." : `What is shown is how it was at ${moment(now())}.`;
  say(byId("banner-what"), `Not live. ${connection.reason} ${known}`);
  const waitMs = connection.retryAtMs === null ? null : connection.retryAtMs - Date.now();
  const age = frame === null ? "" : `That was ${span(really() - aliveAtMs)} ago. `;
  say(
    byId("banner-age"),
    age + (waitMs === null ? "Trying…" : `Next attempt in ${Math.max(0, Math.ceil(waitMs / 1000))} s.`),
  );
}

function drawTitle() {
  const wrong = whereWrong().length;
  const state = connection.kind === "lost" ? "Not live · " : wrong > 0 ? `(${wrong}) ` : "";
  const title = `${state}Governor`;
  if (document.title !== title) document.title = title;
}

/** Tells those who do not see the page when something goes wrong or right, and not too often. */
function announce(wrong) {
  if (newsTimer !== null || newsOf(wrong) === told) return;
  newsTimer = setTimeout(() => {
    newsTimer = null;
    if (frame === null) return;
    told = newsOf(whereWrong());
    say(byId("news"), told);
  }, NEWS_MS);
}

function newsOf(wrong) {
  if (wrong.length === 0) return "Nothing is wrong.";
  const names = wrong.map(({ id }) => cut(id, 100));
  return `Something is wrong with ${listed(names, 5)}.`;
}

function whereWrong() {
  return frame === null ? [] : frame.identities.filter((identity) => troubles(identity).length > 0);
}

// Pages of identities

function drawPager() {
  const more = shownFrame.nextAfter !== undefined;
  show(byId("pager"), more || page !== null);
  byId("page-first").disabled = page === null;
  byId("page-next").disabled = !more;
  const from = page?.from ?? 1;
  const where = `${from} to ${from + shownFrame.identities.length - 1} of ${count(shownFrame.identitiesTotal, "identity", "identities")}`;
  say(byId("page-where"), page === null ? where : `${where}, asked for every 2 s`);
}

function turnPage(next) {
  page?.closing.abort();
  page = next;
  if (next !== null) refreshPage(next);
  if (frame !== null) scheduleDraw();
}

async function refreshPage(turned) {
  const { signal } = turned.closing;
  while (!signal.aborted) {
    try {
      turned.frame = await ask(token, `admin/identities?after=${encodeURIComponent(turned.after)}`, { signal });
      if (turned.frame.identities.length === 0) turnPage(null);
      scheduleDraw();
    } catch (error) {
      if (signal.aborted) return;
      say(byId("page-where"), sentence(error)); // the stream tells of a break
    }
    await new Promise((resolve) => setTimeout(resolve, PAGE_MS));
  }
}

// Acts

byId("act-drain").addEventListener("click", () => dialog.open(() => planEntrance(token)));
byId("act-reload").addEventListener("click", () => dialog.open(() => planReload(token)));
byId("act-restart").addEventListener("click", () => dialog.open(() => planRestartAll(token)));
byId("sign-out").addEventListener("click", () => signOut());
byId("retry").addEventListener("click", () => feed?.retry());
byId("page-first").addEventListener("click", () => turnPage(null));
byId("page-next").addEventListener("click", () => {
  const from = (page?.from ?? 1) + shownFrame.identities.length;
  turnPage({ after: shownFrame.nextAfter, from, frame: null, closing: new AbortController() });
});
for (const id of ["filter", "only-problems", "kinds"]) {
  byId(id).addEventListener("input", () => {
    if (frame !== null) scheduleDraw();
  });
}
byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = byId("token").value.trim();
  byId("token").value = "";
  if (!/^[\x21-\x7e]+$/.test(given)) {
    sayOrHide(byId("sign-in-error"), "A token has neither spaces nor letters beyond ASCII.");
    return;
  }
  sayOrHide(byId("sign-in-error"), null);
  hasJustEntered = true;
  signIn(given, byId("keep").checked);
});
window.addEventListener("online", () => feed?.retry());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && connection.kind === "lost") feed?.retry();
});
setInterval(() => {
  if (document.hidden) return;
  tickAll();
  drawBanner();
}, 1_000);

byId("legend-cells").append(...legend());
if (window.matchMedia("(max-width: 40rem)").matches) byId("legend").open = false;
const kept = stored();
if (kept) signIn(kept, true);
else signOut();
