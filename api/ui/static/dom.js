// Makes and changes elements. Whatever comes from the governor gets onto the page as text and as nothing else.

import { cut } from "./format.js";

/**
 * Makes an element.
 * @param {string} tag its name.
 * @param {Record<string, string|number|boolean|null|undefined>} attributes `text` is its text; null, undefined and
 *   false leave an attribute out, true sets it empty.
 * @param {...(Node|string|null)} children what is in it; null is nothing.
 * @returns {HTMLElement}
 */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = visible(String(value ?? ""));
    else set(made, name, value);
  }
  made.append(
    ...children.filter((child) => child !== null).map((child) => (typeof child === "string" ? visible(child) : child)),
  );
  return made;
}

/** Sets or removes an attribute; touches nothing that is so already. */
export function set(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const told = value === true ? "" : String(value);
  if (element.getAttribute(name) !== told) element.setAttribute(name, told);
}

/** Sets `data-` attributes, by their names in JavaScript. */
export function mark(element, values) {
  for (const [name, value] of Object.entries(values)) {
    set(
      element,
      `data-${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`,
      value === null ? "" : String(value),
    );
  }
}

/** Sets an element's text; touches nothing if it is so already. */
export function say(element, text) {
  const told = visible(text);
  if (element.textContent !== told) element.textContent = told;
}

/** The text with a name for each character that would only change how others look: no name passes for another. */
function visible(text) {
  return text.replace(UNSEEN, (char) => `⟨U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Shows or hides an element. */
export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/** Shows an element with a text; without one hides it. */
export function sayOrHide(element, text) {
  say(element, text ?? "");
  show(element, Boolean(text));
}

/** A name that somebody else chose: cut to a bearable length, its direction kept to itself. */
export function name(text, charsMax = 200) {
  return el("bdi", { text: cut(String(text), charsMax) });
}

/**
 * Makes the children of an element follow a list, keeping those that stay (and the focus in them).
 * @template T
 * @param {HTMLElement} parent
 * @param {T[]} items
 * @param {(item: T) => string} keyOf unique among the items.
 * @param {(item: T) => HTMLElement} make
 * @param {(element: HTMLElement, item: T) => void} update called for new ones as well.
 */
export function follow(parent, items, keyOf, make, update) {
  const before = kept.get(parent) ?? new Map();
  const now = new Map();
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const element = before.get(key) ?? make(item);
    before.delete(key);
    now.set(key, element);
    update(element, item);
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
  for (const gone of before.values()) gone.remove();
  kept.set(parent, now);
}

/** @type {WeakMap<HTMLElement, Map<string, HTMLElement>>} */
const kept = new WeakMap();

/** The element of this id; the page has it. */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no ${id}`);
  return found;
}
