// What happened lately, in sentences.

import { el, follow, name, sayOrHide } from "./dom.js";
import { count, listed, moment } from "./format.js";

const KEPT_MAX = 256;
/** Lines of the list; what is more is told as a number. */
export const LINES_MAX = 50;

const CAUSES = {
  restart: "the backend was restarted",
  reload: "the model was reloaded",
  unknown_fall: "a counter fell and nobody can say why",
};
const PROOFS = { quiet: "the counters are quiet", process_ended: "their process has ended" };
const GROUPS = {
  proofs: ["claims_proven", "claims_quarantined", "identity_contested", "claim_released", "forced_restart"],
  refusals: ["call_refused", "call_broken", "prompt_refused"],
  epochs: ["epoch_began", "forced_restart", "reloaded", "identity_gone", "stopping"],
  acts: ["forced_restart", "claim_released", "drained", "undrained", "reloaded", "stopping"],
};
const BAD = new Set(["claims_quarantined", "identity_contested", "call_broken", "stopping"]);
const GOOD = new Set(["claims_proven", "undrained"]);

/** The events that this page knows of, the oldest first. */
export class Recent {
  constructor() {
    this.events = [];
  }

  /** Takes further events; `fresh`: those from before are another process'. */
  take(events, fresh) {
    if (fresh) this.events = [];
    for (const event of events) {
      const at = this.events.findLastIndex((each) => each.id === event.id);
      if (at === -1) this.events.push(event);
      else this.events[at] = event; // it happened again
    }
    this.events.splice(0, this.events.length - KEPT_MAX);
  }

  /** The epochs of an identity that began, the oldest first. */
  epochs(identityId) {
    const found = this.events.filter(
      (event) => event.identity === identityId && (event.kind === "epoch_began" || event.kind === "forced_restart"),
    );
    return found.map((event) => ({
      epoch: event.epoch,
      boot: event.boot ?? null,
      cause: event.kind === "forced_restart" ? "forced restart" : (event.cause ?? "").replaceAll("_", " "),
      atMs: event.atMs,
    }));
  }

  /** Shows the newest of a group in a list. */
  show(list, more, group) {
    const wanted = this.events
      .filter((event) => group === "all" || (GROUPS[group] ?? []).includes(event.kind))
      .reverse();
    follow(
      list,
      wanted.slice(0, LINES_MAX),
      (event) => `${event.atMs} ${event.id} ${event.count}`,
      (event) => line(event),
      () => {},
    );
    const rest = wanted.length - LINES_MAX;
    sayOrHide(more, wanted.length === 0 ? "Nothing so far." : rest > 0 ? `and ${count(rest, "earlier event")}` : null);
  }
}

function line(event) {
  const kind = BAD.has(event.kind) ? "bad" : GOOD.has(event.kind) ? "good" : "";
  const time = el("time", { datetime: new Date(event.atMs).toISOString(), text: moment(event.atMs) });
  const whose = event.identity === null ? [] : [name(event.identity, 120), ": "];
  const times = event.count > 1 ? el("b", { text: ` ${event.count.toLocaleString("en")} times` }) : null;
  return el(
    "li",
    { class: kind, "data-event": event.id, "data-kind": event.kind },
    time,
    " ",
    el("span", {}, ...whose, ...told(event), times),
  );
}

function told(event) {
  const claims = Array.isArray(event.claims) ? event.claims : [];
  const which = claims.length === 0 ? "no claim" : `${claims.length === 1 ? "claim" : "claims"} ${listed(claims)}`;
  const because = event.reason ? [": ", name(event.reason, 500)] : [];
  switch (event.kind) {
    case "claims_proven":
      return [`${which} proven ended: ${PROOFS[event.proof] ?? event.proof}`];
    case "claims_quarantined":
      return [`${which} quarantined: ${CAUSES[event.life] ?? "nothing can prove the end any more"}`];
    case "epoch_began":
      return [`epoch ${event.epoch ?? ""} began: ${CAUSES[event.cause] ?? event.cause}`];
    case "identity_contested":
      return ["somebody else calls this model; its counter proves nothing until a clean baseline"];
    case "call_broken":
      return ["the connection of a call broke (", name(event.code ?? "?"), ")"];
    case "call_refused":
      return ["a call was refused (", name(event.code ?? "?"), ")"];
    case "forced_restart":
      return [`forced restart, epoch ${event.epoch} began; forgotten without proof: ${which}`];
    case "claim_released":
      return [`${which} released without proof`, ...because];
    case "drained":
      return ["draining: nothing new is accepted", ...because];
    case "undrained":
      return ["new work is accepted again", ...because];
    case "reloaded":
      return ["the configuration was reloaded: ", changes(event.changes)];
    case "identity_gone":
      return ["nothing of it is left, and it is gone"];
    case "stopping":
      return ["the governor stops"];
    default:
      return [name(event.kind)];
  }
}

function changes(keys) {
  return Array.isArray(keys) && keys.length > 0 ? name(listed(keys), 400) : "nothing changed";
}
