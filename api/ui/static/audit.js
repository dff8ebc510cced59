// The audit log: who did what, and why. It is asked for while it is open.

import { ask, sentence } from "./api.js";
import { byId, el, follow, name, say } from "./dom.js";
import { moment } from "./format.js";

const SHOWN = 50;

export class Audit {
  /** @param {() => string} token the operator's. */
  constructor(token) {
    this.token = token;
    this.asking = false;
    byId("audit").addEventListener("toggle", () => this.update());
  }

  /** Something may have been added. */
  async update() {
    if (!byId("audit").open || this.asking || !this.token()) return;
    this.asking = true;
    try {
      const { entries, nextBefore } = await ask(this.token(), `admin/audit?size=${SHOWN}`);
      follow(
        byId("audit-entries"),
        entries,
        (entry) => String(entry.id),
        entryLine,
        () => {},
      );
      const told = entries.length === 0 ? "Nobody has done anything since the governor started." : "";
      say(byId("audit-note"), nextBefore === undefined ? told : "There is more: GET /admin/audit?before=…");
    } catch (error) {
      say(byId("audit-note"), sentence(error));
    } finally {
      this.asking = false;
    }
  }
}

function entryLine(entry) {
  const who = [entry.operator === null ? null : name(entry.operator, 100), entry.operator === null ? null : ", "];
  const failed =
    entry.result === "done"
      ? null
      : el("span", { class: "outcome", text: ` ${entry.result}${entry.error === null ? "" : `: ${entry.error}`}` });
  return el(
    "li",
    { class: entry.result === "done" ? "" : "bad", "data-audit": entry.id, "data-act": entry.act },
    el("time", { datetime: new Date(entry.atMs).toISOString(), text: moment(entry.atMs) }),
    " ",
    el(
      "span",
      {},
      el("b", { text: entry.act.replaceAll("_", " ") + (entry.asked.dryRun === true ? " (tried only)" : "") }),
      " of ",
      name(entry.target, 120),
      " by ",
      ...who,
      `${entry.by}${entry.address === null ? "" : ` from ${entry.address}`}`,
      entry.reason === null ? null : ": ",
      entry.reason === null ? null : name(entry.reason, 500),
      failed,
    ),
  );
}
