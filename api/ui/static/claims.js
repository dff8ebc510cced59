// Claims in words: whom each serves, why it is stuck, and the way out.

import { tick } from "./clock.js";
import { el, follow, mark, name, say, sayOrHide, show } from "./dom.js";
import { bootName, brief } from "./format.js";
import { STATES, wordOf } from "./states.js";

/** Claims that one list shows before somebody asks for more. */
export const CLAIMS_MAX = 6;

/** Whom a claim serves, as elements. */
export function served(serves) {
  if (serves === undefined) return [];
  if (serves.sessionId !== undefined) {
    return ["session ", name(brief(serves.sessionId, 13)), ", prompt ", name(brief(serves.promptId ?? "?", 13))];
  }
  return [name(serves.caller ?? "?", 80)];
}

/**
 * A list of claims with a line for those that are not in it.
 * @param {string} label for who does not see it.
 * @param {(claim: object) => void} onRelease somebody wants to release one.
 */
export function makeClaims(label, onRelease) {
  const list = el("ul", { class: "claims", role: "list", "aria-label": label });
  const more = el("button", { type: "button", class: "quiet", hidden: true });
  const rest = el("p", { class: "muted", hidden: true });
  const made = { list, more, rest, whole: false, onRelease, again: () => {} };
  more.addEventListener("click", () => {
    made.whole = !made.whole;
    made.again();
  });
  return made;
}

/**
 * Shows claims.
 * @param {ReturnType<typeof makeClaims>} shown
 * @param {object[]} claims those that are known.
 * @param {number} total how many there are.
 * @param {number} atMs when it was so.
 * @param {number} max claims until somebody asks for more.
 */
export function updateClaims(shown, claims, total, atMs, max) {
  shown.again = () => updateClaims(shown, claims, total, atMs, max);
  const told = shown.whole ? claims : claims.slice(0, max);
  follow(
    shown.list,
    told,
    (claim) => String(claim.id),
    (claim) => makeClaim(claim, shown),
    (row, claim) => updateClaim(row, claim, atMs),
  );
  show(shown.more, claims.length > max);
  say(shown.more, shown.whole ? "Show fewer" : `Show ${claims.length - max} more`);
  const beyond = total - claims.length;
  sayOrHide(shown.rest, beyond > 0 ? `and ${beyond.toLocaleString("en")} more, which are not listed here` : null);
}

function makeClaim(claim, shown) {
  const release = el("button", { type: "button", class: "grave small", hidden: true, text: "Release…" });
  release.setAttribute("aria-label", `Release claim ${claim.id}…`);
  const row = el(
    "li",
    {},
    el(
      "p",
      { class: "claim-head" },
      el("span", { class: "cell small", "aria-hidden": "true" }, el("span", { class: "letter" })),
      el("b", { text: `Claim ${claim.id}` }),
      el("span", {}, el("span", { class: "word" }), " for ", el("span", { class: "age" })),
      release,
    ),
    el(
      "p",
      { class: "serves muted" },
      `${claim.kind ?? "call"} of `,
      ...served(claim.serves),
      el("span", { class: "where" }),
    ),
    el("p", { class: "broke" }),
    el("p", { class: "why" }),
  );
  release.addEventListener("click", () => shown.onRelease(latest.get(row)));
  return row;
}

function updateClaim(row, claim, atMs) {
  latest.set(row, claim);
  mark(row, { claim: claim.id, state: claim.state });
  mark(row.querySelector(".cell"), { state: claim.state });
  say(row.querySelector(".letter"), STATES[claim.state]?.letter ?? "?");
  say(row.querySelector(".word"), wordOf(claim.state));
  tick(row.querySelector(".age"), atMs - claim.ageMs);
  say(row.querySelector(".where"), where(claim));
  sayOrHide(row.querySelector(".broke"), claim.broke ?? null);
  sayOrHide(row.querySelector(".why"), claim.quarantined ? `Unprovable: ${claim.quarantined}` : null);
  show(row.querySelector("button"), claim.releasable);
}

function where(claim) {
  const parts = [];
  if (claim.epoch !== undefined && claim.epoch !== null) parts.push(`epoch ${claim.epoch}`);
  if (claim.boot !== null) parts.push(`process ${bootName(claim.boot)}`);
  if (!claim.delivered) parts.push("not yet delivered");
  return parts.length > 0 ? ` · ${parts.join(" · ")}` : "";
}

/** What was shown of each row last. @type {WeakMap<HTMLElement, object>} */
const latest = new WeakMap();
