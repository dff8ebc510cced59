// One identity: its slots, what holds them, what is known of its counters, who waits.

import { tick, unwatch, watch } from "./clock.js";
import { CELLS_MAX, countedSlots, makeCells, updateCells } from "./cells.js";
import { CLAIMS_MAX, makeClaims, updateClaims } from "./claims.js";
import { el, follow, mark, name, say, sayOrHide, show } from "./dom.js";
import { bootName, brief, count, cut, listed, moment } from "./format.js";
import { brokenCount, troubles } from "./states.js";

const EPOCHS_MAX = 8;
const CELLS_CROWDED = 16;
const CLAIMS_CROWDED = 2;
const COUNTED = {
  calls: "calls",
  answered: "answered",
  undelivered: "never delivered",
  broken: "broken",
  abandoned: "left by their caller",
  refused: "refused",
  provenQuiet: "proven ended by quiet",
  provenProcessEnded: "proven ended with their process",
  releasedUnproven: "released without proof",
  baselineMissing: "broken without a baseline",
  readingsFailed: "readings failed",
  restarts: "restarts of the backend",
  reloads: "reloads of the model",
  unknownFalls: "falls of a counter that nobody can explain",
  contested: "times contested",
};
let made = 0;

/**
 * The card of one identity.
 * @param {object} identity
 * @param {{restart: (identity: object) => void, release: (identity: object, claim: object) => void}} acts
 */
export class Card {
  constructor(identity, acts) {
    made += 1;
    this.identity = identity;
    this.element = el("article", {
      class: "card",
      id: `identity-${made}`,
      tabindex: "-1",
      "aria-labelledby": `identity-${made}-title`,
    });
    this.title = el(
      "h3",
      { id: `identity-${made}-title` },
      name(identity.names.length > 0 ? listed(identity.names, 4) : identity.model),
    );
    this.badges = el("ul", { class: "badges", role: "list", "aria-label": "State" });
    this.trouble = el("ul", { class: "problem", role: "list", "aria-label": "What is wrong", hidden: true });
    this.slots = el("p", { class: "slots" });
    this.cells = makeCells();
    this.facts = new Facts();
    this.queues = makeQueues();
    this.broken = makeClaims("Broken claims", (claim) => acts.release(this.identity, claim));
    this.brokenPart = el(
      "section",
      { class: "broken" },
      el("h4", { text: "Broken claims" }),
      this.broken.list,
      this.broken.more,
      this.broken.rest,
    );
    this.epochs = el("ol", { class: "epochs" });
    this.epochsPart = el("section", {}, el("h4", { text: "Epochs" }), this.epochs);
    this.claims = makeClaims("Claims", (claim) => acts.release(this.identity, claim));
    this.claimsPart = this.part("All claims", this.claims.list, this.claims.more, this.claims.rest);
    this.totals = el("dl", { class: "facts" });
    this.totalsPart = this.part("Since the governor started", this.totals);
    const restart = el("button", { type: "button", class: "grave", text: "Force restart…" });
    restart.addEventListener("click", () => acts.restart(this.identity));
    this.element.append(
      el("header", {}, this.title, el("p", { class: "id muted" }, name(identity.id)), this.badges),
      this.trouble,
      this.slots,
      this.cells.list,
      this.cells.more,
      this.brokenPart,
      this.facts.element,
      this.queues.part,
      this.epochsPart,
      this.claimsPart,
      this.totalsPart,
      el("footer", {}, restart),
    );
    watch(this.element);
  }

  gone() {
    unwatch(this.element);
  }

  part(title, ...children) {
    const details = el("details", {}, el("summary", { text: title }), ...children);
    details.addEventListener("toggle", () => this.updateClosed());
    return details;
  }

  /** Shows an identity as it was at `atMs`, with what is known of its past epochs; less of it among many others. */
  update(identity, atMs, epochs, crowded) {
    this.identity = identity;
    this.atMs = atMs;
    const wrong = troubles(identity);
    mark(this.element, {
      id: identity.id, usable: identity.usable, epoch: identity.epoch, boot: identity.boot ?? "",
      slots: identity.credits.slots, free: identity.credits.free, held: identity.credits.held,
      claimsTotal: identity.claimsTotal, waiting: identity.queue.waiting, polling: identity.polling,
      sessions: identity.sessions.live, pendingPrompts: identity.sessions.pendingPrompts, trouble: wrong.length > 0,
    }); // prettier-ignore
    say(
      this.title.firstChild,
      identity.names.length > 0 ? cut(listed(identity.names, 4), 200) : cut(identity.model, 200),
    );
    follow(
      this.badges,
      badges(identity),
      (badge) => badge.text,
      (badge) => el("li", { class: badge.kind, text: badge.text }),
      () => {},
    );
    follow(
      this.trouble,
      wrong.map((sentence, number) => ({ sentence, number })),
      ({ number }) => String(number),
      () => el("li"),
      (line, { sentence }) => say(line, sentence),
    );
    show(this.trouble, wrong.length > 0);
    say(this.slots, countedSlots(identity));
    updateCells(this.cells, identity, atMs, crowded ? CELLS_CROWDED : CELLS_MAX);
    const broken = identity.claims.filter((claim) => claim.releasable);
    show(this.brokenPart, brokenCount(identity) > 0);
    updateClaims(this.broken, broken, brokenCount(identity), atMs, crowded ? CLAIMS_CROWDED : CLAIMS_MAX);
    this.facts.update(identity, atMs);
    updateQueues(this.queues, identity, atMs);
    show(this.epochsPart, identity.epoch > 0);
    updateEpochs(this.epochs, identity, epochs);
    this.updateClosed();
  }

  /** What can be closed is filled while it is open only: hundreds of cards must not weigh on the page. */
  updateClosed() {
    const identity = this.identity;
    const claims = this.claimsPart.open ? identity.claims : [];
    updateClaims(this.claims, claims, this.claimsPart.open ? identity.claimsTotal : 0, this.atMs, CLAIMS_MAX);
    const totals = this.totalsPart.open ? Object.entries(identity.totals) : [];
    follow(
      this.totals,
      totals,
      ([key]) => key,
      ([key]) => el("div", {}, el("dt", { text: COUNTED[key] ?? key }), el("dd")),
      (row, [, number]) => say(row.lastChild, number.toLocaleString("en")),
    );
  }
}

function badges(identity) {
  const told = [identity.usable ? { kind: "good", text: "usable" } : { kind: "bad", text: "not usable" }];
  if (identity.contested) told.push({ kind: "bad", text: "contested" });
  if (!identity.handsOutCredits) told.push({ kind: "warn", text: "hands out no slots: a restart waits" });
  if (identity.leaving) told.push({ kind: "warn", text: "leaving" });
  if (identity.polling) told.push({ kind: "warn", text: "asking for evidence" });
  if (identity.facts?.decoupled) told.push({ kind: "", text: "decoupled" });
  if (identity.facts?.ensemble) told.push({ kind: "", text: "ensemble" });
  return told;
}

class Facts {
  constructor() {
    this.element = el("dl", { class: "facts" });
    this.boot = this.row("Process");
    this.counters = this.row("Counters");
    this.reading = this.row("Last reading");
    this.failure = this.row("Reading failed");
    this.wait = this.row("Waits for a reading");
    this.waiting = this.row("Calls waiting");
    this.sessions = this.row("Sessions");
  }

  row(title) {
    const [text, age, tail] = [el("span"), el("span", { class: "age" }), el("span")];
    const row = el("div", {}, el("dt", { text: title }), el("dd", {}, text, age, tail));
    this.element.append(row);
    return { row, text, age, tail };
  }

  tell({ row, text, age, tail }, told, sinceMs = null, rest = "") {
    show(row, told !== null);
    say(text, told ?? "");
    tick(age, told === null ? null : sinceMs);
    say(tail, rest);
  }

  update(identity, atMs) {
    const { reading, queue, sessions } = identity;
    const begun = identity.epoch > 0;
    this.tell(this.boot, begun ? bootName(identity.boot) : null);
    this.tell(this.counters, begun ? witnesses(identity) : null);
    if (reading === null) this.tell(this.reading, "none so far");
    else this.tell(this.reading, "", atMs - reading.ageMs, ` ago: ${counted(reading)}`);
    const failedAtMs = identity.readingErrorAgeMs === null ? null : atMs - identity.readingErrorAgeMs;
    this.tell(
      this.failure,
      identity.readingError === null ? null : "",
      failedAtMs,
      ` ago: ${identity.readingError ?? ""}`,
    );
    this.tell(this.wait, identity.readingWaitAgeMs === null ? null : "for ", atMs - (identity.readingWaitAgeMs ?? 0));
    if (queue.waiting === 0) this.tell(this.waiting, `none of at most ${queue.limit.toLocaleString("en")}`);
    else {
      const told = `${queue.waiting.toLocaleString("en")} of at most ${queue.limit.toLocaleString("en")}, the first for `;
      this.tell(this.waiting, told, atMs - (queue.oldestAgeMs ?? 0));
    }
    const prompts = `${count(sessions.pendingPrompts, "prompt")} pending, ${sessions.activePrompts} being answered`;
    this.tell(this.sessions, sessions.live === 0 ? "none" : `${sessions.live.toLocaleString("en")} with ${prompts}`);
  }
}

function witnesses({ witnesses: { model, process }, hasBaseline }) {
  if (!hasBaseline) return "no baseline yet";
  const told = [];
  if (model !== null) told.push(`model ${model.highest} of ${model.bound}`);
  if (process !== null) told.push(`process ${process.highest} of ${process.bound}`);
  return told.length > 0 ? told.join(", ") : "not read";
}

function counted({ model, process }) {
  const told = [`model ${model.success} done, ${model.fail} failed`];
  if (process !== null) told.push(`process ${process.success} done, ${process.fail} failed`);
  return told.join("; ");
}

function makeQueues() {
  const prompts = el("ul", { role: "list", class: "queue" });
  const callers = el("ul", { role: "list", class: "queue" });
  const [promptsMore, callersMore] = [
    el("p", { class: "muted", hidden: true }),
    el("p", { class: "muted", hidden: true }),
  ];
  const promptsPart = el("div", {}, el("h4", { text: "Prompts by session" }), prompts, promptsMore);
  const callersPart = el("div", {}, el("h4", { text: "Calls waiting for a slot" }), callers, callersMore);
  return {
    part: el("section", { class: "queues" }, promptsPart, callersPart),
    prompts,
    promptsMore,
    promptsPart,
    callers,
    callersMore,
    callersPart,
  };
}

function updateQueues(shown, { sessions, queue }, atMs) {
  show(shown.part, sessions.queuesTotal + queue.callersTotal > 0);
  show(shown.promptsPart, sessions.queuesTotal > 0);
  show(shown.callersPart, queue.callersTotal > 0);
  follow(
    shown.prompts,
    sessions.queues,
    (each) => each.sessionId,
    (each) => el("li", { "data-session": each.sessionId }, name(brief(each.sessionId, 13)), " ", el("span")),
    (row, each) => {
      mark(row, { pending: each.pendingPrompts, active: each.active });
      const queued = each.pendingPrompts - (each.active ? 1 : 0);
      const parts = [each.active ? "1 being answered" : null, queued > 0 ? `${queued} queued` : null];
      say(row.lastChild, parts.filter(Boolean).join(", "));
    },
  );
  const morePrompts = sessions.queuesTotal - sessions.queues.length;
  sayOrHide(shown.promptsMore, morePrompts > 0 ? `and ${count(morePrompts, "more session")}` : null);
  follow(
    shown.callers,
    queue.callers,
    (each) => each.sessionId ?? `caller ${each.caller}`,
    (each) =>
      el(
        "li",
        {},
        each.sessionId === undefined ? name(each.caller, 80) : "session ",
        each.sessionId === undefined ? null : name(brief(each.sessionId, 13)),
        " ",
        el("span", { class: "age" }),
        el("span"),
      ),
    (row, each) => {
      mark(row, { waiting: each.waiting });
      tick(row.querySelector(".age"), atMs - each.oldestAgeMs);
      say(row.lastChild, each.waiting > 1 ? `, ${each.waiting} calls` : "");
    },
  );
  const moreCallers = queue.callersTotal - queue.callers.length;
  sayOrHide(shown.callersMore, moreCallers > 0 ? `and ${count(moreCallers, "more caller")}` : null);
}

/** The newest epoch first. What is known of the past comes from the recent events. */
function updateEpochs(list, identity, epochs) {
  const past = epochs.filter((each) => each.epoch < identity.epoch).slice(-(EPOCHS_MAX - 1));
  const now = epochs.findLast((each) => each.epoch === identity.epoch);
  const items = [
    { key: `now ${identity.epoch} ${identity.boot} ${now?.cause}`, title: `Epoch ${identity.epoch}`, rest: ` now${began({ ...now, boot: identity.boot })}` },
    ...past.reverse().map((each) => ({ key: `${each.epoch} ${each.atMs}`, title: `Epoch ${each.epoch}`, rest: began(each) })),
  ]; // prettier-ignore
  const earliest = past.at(-1)?.epoch ?? identity.epoch;
  if (earliest === 2) items.push({ key: "first", title: "Epoch 1", rest: " · the first reading" });
  else if (earliest > 2)
    items.push({ key: `before ${earliest}`, title: `Epochs 1 to ${earliest - 1}`, rest: " · earlier" });
  follow(
    list,
    items,
    (each) => each.key,
    ({ key, title, rest }) =>
      el(
        "li",
        { class: key.startsWith("now ") ? "now" : null },
        el("b", { text: title }),
        el("span", { class: "muted", text: rest }),
      ),
    () => {},
  );
}

function began({ cause, atMs, boot }) {
  const parts = [];
  if (cause !== undefined) parts.push(`${cause} at ${moment(atMs)}`);
  if (boot) parts.push(`process ${bootName(boot)}`);
  return parts.length > 0 ? ` · ${parts.join(" · ")}` : "";
}
