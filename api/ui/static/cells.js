// The slots of an identity as cells: who holds each, in which state, for how long.

import { tick } from "./clock.js";
import { el, follow, mark, say, sayOrHide } from "./dom.js";
import { FREE, STATES, wordOf } from "./states.js";
import { count } from "./format.js";

/** Cells of one identity; what is more is told in words. */
export const CELLS_MAX = 48;

/** The list that `updateCells` fills, with the line below it. */
export function makeCells() {
  return {
    list: el("ul", { class: "cells", role: "list", "aria-label": "Slots" }),
    more: el("p", { class: "muted", hidden: true }),
  };
}

/**
 * Shows the slots of an identity.
 * @param {{list: HTMLElement, more: HTMLElement}} cells
 * @param {object} identity as `/admin/identities` has it.
 * @param {number} atMs when it was so.
 * @param {number} max cells at the most.
 */
export function updateCells(cells, identity, atMs, max) {
  const claims = identity.claims.slice(0, max);
  const free = Math.min(identity.credits.free, max - claims.length);
  const items = [
    ...claims.map((claim) => ({ key: `claim ${claim.id}`, claim })),
    ...Array.from({ length: free }, (_, number) => ({ key: `free ${number}`, claim: null })),
  ];
  follow(
    cells.list,
    items,
    (item) => item.key,
    () => makeCell(),
    (cell, { claim }) => updateCell(cell, claim, atMs),
  );
  const heldMore = identity.claimsTotal - claims.length;
  const freeMore = identity.credits.free - free;
  const told = [
    heldMore > 0 ? `${heldMore.toLocaleString("en")} held` : null,
    freeMore > 0 ? `${freeMore.toLocaleString("en")} free` : null,
  ].filter(Boolean);
  sayOrHide(cells.more, told.length > 0 ? `and ${told.join(", ")} more` : null);
}

/** The cells of the legend. */
export function legend() {
  return [["free", FREE], ...Object.entries(STATES).reverse()].map(([state, { letter, word, meaning }]) => {
    const cell = el(
      "span",
      { class: "cell", "data-state": state, "aria-hidden": "true" },
      el("span", { class: "letter", text: letter }),
    );
    return el("li", {}, cell, el("span", {}, el("b", { text: word }), ` ${meaning}`));
  });
}

/** How many slots there are of each kind, in words. */
export function countedSlots(identity) {
  const parts = [`${identity.credits.free.toLocaleString("en")} free`];
  for (const state of Object.keys(STATES).reverse()) {
    const number = identity.states[state];
    if (number > 0) parts.push(`${number.toLocaleString("en")} ${wordOf(state)}`);
  }
  return `${count(identity.credits.slots, "slot")}: ${parts.join(", ")}`;
}

function makeCell() {
  return el(
    "li",
    { class: "cell" },
    el("span", { class: "letter", "aria-hidden": "true" }),
    el("span", { class: "unseen word" }),
    el("span", { class: "age" }),
  );
}

function updateCell(cell, claim, atMs) {
  const [letter, word, age] = cell.children;
  const state = claim === null ? "free" : claim.state;
  mark(cell, { state, claim: claim === null ? null : claim.id });
  if (claim === null) cell.removeAttribute("data-claim");
  say(letter, claim === null ? FREE.letter : (STATES[state]?.letter ?? "?"));
  say(word, claim === null ? FREE.word : `claim ${claim.id} ${wordOf(state)} for `);
  tick(age, claim === null ? null : atMs - claim.ageMs, { short: true });
}
