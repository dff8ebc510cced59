// The one dialog of the page: says what an act does, asks why, does it, and shows what came of it.

import { byId, el, say, sayOrHide, show } from "./dom.js";
import { ask, sentence } from "./api.js";

const REASON_MAX = 500;
const OPERATOR_MAX = 100;
const DRAIN_S_MAX = 3600;
const PATIENCE_MS = 30_000;
const OPERATOR_KEY = "governor.operator";

/**
 * What the dialog is opened with.
 * @typedef {object} Plan
 * @property {string} title
 * @property {Node[]} body what will happen.
 * @property {string|null} confirm label of the button that does it; null: there is nothing to do.
 * @property {boolean} [calm] it takes nothing away.
 * @property {boolean} [drains] the operator may give the running calls time.
 * @property {string} path what is asked for.
 * @property {object} request its body, without the reason.
 * @property {(answer: object) => Node[]} report what came of it.
 * @property {(frame: object) => string|null} changed why this plan is out of date.
 */

export class Dialog {
  /** @param {() => string} token the operator's. @param {() => void} onDone an act has ended, in whatever way. */
  constructor(token, onDone) {
    this.token = token;
    this.onDone = onDone;
    this.dialog = byId("dialog");
    this.make = null;
    this.plan = null;
    this.running = null;
    byId("dialog-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running === null && this.plan?.confirm) this.act();
    });
    byId("dialog-cancel").addEventListener("click", () => this.cancel());
    byId("dialog-again").addEventListener("click", () => this.look());
    this.dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      this.cancel();
    });
    this.dialog.addEventListener("close", () => this.closed());
  }

  /** @param {() => Promise<Plan>} make looks at what there is and says what would be done. */
  async open(make) {
    if (this.dialog.open) return;
    this.make = make;
    this.dialog.showModal();
    await this.look();
  }

  /** A new state is known; the plan may be out of date by it. */
  stateChanged(frame) {
    if (!this.dialog.open || this.plan === null || this.running !== null || this.done) return;
    const changed = this.plan.changed(frame);
    sayOrHide(byId("dialog-changed"), changed);
    if (changed) show(byId("dialog-again"), true);
  }

  close() {
    if (this.dialog.open) this.dialog.close();
  }

  async look() {
    const reason = this.field("reason")?.value ?? "";
    this.plan = null;
    this.done = false;
    for (const id of ["dialog-changed", "dialog-error"]) sayOrHide(byId(id), null);
    for (const id of ["dialog-again", "dialog-confirm", "dialog-fields"]) show(byId(id), false);
    say(byId("dialog-cancel"), "Cancel");
    say(byId("dialog-title"), "One moment…");
    byId("dialog-body").replaceChildren();
    byId("dialog-title").focus();
    const looking = this.make;
    let plan;
    try {
      plan = await looking();
    } catch (error) {
      if (looking !== this.make) return;
      say(byId("dialog-title"), "This cannot be done now");
      this.fail(error);
      show(byId("dialog-again"), true);
      say(byId("dialog-cancel"), "Close");
      return;
    }
    if (looking === this.make) this.show(plan, reason);
  }

  show(plan, reason) {
    this.plan = plan;
    say(byId("dialog-title"), plan.title);
    byId("dialog-body").replaceChildren(...plan.body);
    byId("dialog-fields").replaceChildren(...(plan.confirm === null ? [] : fields(plan, reason)));
    show(byId("dialog-fields"), plan.confirm !== null);
    const confirm = byId("dialog-confirm");
    show(confirm, plan.confirm !== null);
    say(confirm, plan.confirm ?? "");
    confirm.className = plan.calm ? "main" : "grave";
    if (plan.confirm === null) say(byId("dialog-cancel"), "Close");
    (this.field("reason") ?? byId("dialog-title")).focus();
  }

  async act() {
    const reason = this.field("reason").value.trim();
    const operator = this.field("operator").value.trim();
    const body = { ...this.plan.request, reason };
    if (operator) body.operator = operator;
    remember(operator);
    const drainS = Number(this.field("drain")?.value ?? 0);
    if (drainS > 0) body.drainMs = Math.round(drainS * 1000);
    this.running = new AbortController();
    this.busy(
      true,
      drainS > 0
        ? `Waiting up to ${drainS} s for the running calls. Cancel gives it up, and nothing is forgotten.`
        : "Working…",
    );
    try {
      const timeoutMs = PATIENCE_MS + drainS * 1000;
      const answer = await ask(this.token(), this.plan.path, { body, signal: this.running.signal, timeoutMs });
      this.report(this.plan.report(answer));
    } catch (error) {
      this.fail(error);
      if (["epoch_changed", "unknown_claim", "claim_open"].includes(error.code)) show(byId("dialog-again"), true);
    } finally {
      this.running = null;
      this.busy(false, "");
      this.onDone();
    }
  }

  report(nodes) {
    this.done = true;
    say(byId("dialog-title"), "Done");
    byId("dialog-body").replaceChildren(...nodes);
    for (const id of ["dialog-changed", "dialog-error"]) sayOrHide(byId(id), null);
    for (const id of ["dialog-fields", "dialog-confirm", "dialog-again"]) show(byId(id), false);
    say(byId("dialog-cancel"), "Close");
    byId("dialog-title").focus();
  }

  fail(error) {
    const place = byId("dialog-error");
    place.replaceChildren(el("span", { text: sentence(error) + (error.code ? ` (${error.code})` : "") }));
    const details = [...(error.body?.problems ?? []), ...(error.body?.keys ?? [])];
    if (details.length > 0) {
      place.append(
        el(
          "ul",
          {},
          ...details
            .slice(0, 20)
            .map((each) => el("li", { text: typeof each === "string" ? each : JSON.stringify(each) })),
        ),
      );
    }
    show(place, true);
  }

  busy(busy, told) {
    say(byId("dialog-progress"), told);
    for (const control of byId("dialog-form").querySelectorAll("input, #dialog-confirm, #dialog-again"))
      control.disabled = busy;
  }

  cancel() {
    if (this.running !== null) this.running.abort();
    else this.close();
  }

  closed() {
    this.make = null;
    this.plan = null;
    byId("dialog-fields").replaceChildren();
    // The browser has given the focus back, unless what had it is gone, as the row of a released claim.
    const focused = document.activeElement;
    if (focused === document.body || this.dialog.contains(focused)) byId("main").focus({ preventScroll: true });
  }

  field(which) {
    return byId("dialog-fields").querySelector(`[data-field="${which}"]`);
  }
}

function fields(plan, reason) {
  const told = [
    ...field("reason", "Reason", "The audit log keeps it.", {
      type: "text",
      required: true,
      maxlength: REASON_MAX,
      value: reason,
      pattern: ".*\\S.*",
    }),
    ...field("operator", "Who you are", "Optional; nobody checks it.", {
      type: "text",
      maxlength: OPERATOR_MAX,
      value: remembered(),
    }),
  ];
  if (plan.drains) {
    told.push(
      ...field("drain", "Seconds to wait first", "No slot is handed out meanwhile; calls that come back by themselves are not forgotten.", {
        type: "number", min: 0, max: DRAIN_S_MAX, step: 1, value: "0", inputmode: "numeric",
      }), // prettier-ignore
    );
  }
  return told;
}

function field(which, label, hint, attributes) {
  return [
    el("label", { for: `field-${which}`, text: label }),
    el("input", {
      id: `field-${which}`,
      "data-field": which,
      "aria-describedby": `hint-${which}`,
      spellcheck: "false",
      ...attributes,
    }),
    el("p", { id: `hint-${which}`, class: "hint muted", text: hint }),
  ];
}

function remembered() {
  try {
    return sessionStorage.getItem(OPERATOR_KEY) ?? "";
  } catch {
    return ""; // the browser keeps nothing for pages
  }
}

function remember(operator) {
  try {
    sessionStorage.setItem(OPERATOR_KEY, operator);
  } catch {
    // likewise
  }
}
