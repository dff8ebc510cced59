// The governor in a few numbers, and what is wrong.

import { tick } from "./clock.js";
import { byId, el, follow, mark, name, say, show } from "./dom.js";
import { brokenCount, troubles } from "./states.js";

const PROBLEMS_MAX = 12;

/** Shows the numbers of a state, and the identities where something is wrong; returns these. */
export function updateOverview(frame, cards) {
  const { identities, identitiesTotal } = frame;
  const sum = (number) => identities.reduce((total, identity) => total + number(identity), 0);
  const part = identitiesTotal > identities.length ? `, first ${identities.length} identities` : "";
  const told = [
    ["held", `Slots held${part}`, `${n(sum((each) => each.credits.held))} of ${n(sum((each) => each.credits.slots))}`],
    ["broken", `Broken claims${part}`, n(sum(brokenCount))],
    ["waiting", `Calls waiting${part}`, n(sum((each) => each.queue.waiting))],
    ["prompts", "Prompts pending", `${n(frame.sessions.pendingPrompts)}`],
    ["sessions", "Sessions", n(frame.sessions.live)],
    ["up", "Up", null],
  ];
  follow(
    byId("numbers"),
    told,
    ([key]) => key,
    ([key]) => el("div", { "data-number": key }, el("dt"), el("dd")),
    (row, [key, title, text]) => {
      say(row.firstChild, title);
      if (text === null) tick(row.lastChild, frame.startedAtMs);
      else say(row.lastChild, text);
      mark(row, { bad: key === "broken" && text !== "0" });
    },
  );
  return updateProblems(identities, cards);
}

function updateProblems(identities, cards) {
  const wrong = identities.filter((identity) => troubles(identity).length > 0);
  const rest = wrong.length - PROBLEMS_MAX;
  const lines = wrong.slice(0, PROBLEMS_MAX).map((identity) => ({ key: identity.id, identity }));
  if (rest > 0) lines.push({ key: "rest", identity: null });
  const place = byId("problems");
  mark(place, { count: wrong.length });
  if (place.firstChild === null)
    place.append(
      el("p", { class: "fine" }),
      el("ul", { class: "problems", role: "list", "aria-label": "Where something is wrong" }),
    );
  const [fine, list] = place.children;
  show(fine, wrong.length === 0);
  show(list, wrong.length > 0);
  say(fine, identities.length === 0 ? "There is no identity." : "Nothing is wrong.");
  follow(
    list,
    lines,
    (each) => each.key,
    ({ identity }) => (identity === null ? el("li") : problemLine(identity, cards)),
    (row, { identity }) => {
      if (identity === null) say(row, `and ${n(rest)} more identities`);
      else say(row.lastChild, troubles(identity).join("; "));
    },
  );
  return wrong;
}

function problemLine(identity, cards) {
  const link = el("a", { href: "#identities" }, name(identity.id, 120));
  link.addEventListener("click", (event) => {
    const card = cards.get(identity.id)?.element;
    if (card === undefined || !card.isConnected) return;
    event.preventDefault();
    card.scrollIntoView({ block: "start" });
    card.focus({ preventScroll: true });
  });
  return el("li", {}, link, ": ", el("span"));
}

function n(number) {
  return number.toLocaleString("en");
}
