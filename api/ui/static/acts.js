// The acts of operators: what each would do now, in words, and what it did. `docs/admin.md` has the requests.

import { ask } from "./api.js";
import { served } from "./claims.js";
import { el, name } from "./dom.js";
import { brief, count, listed, span } from "./format.js";
import { brokenCount, wordOf } from "./states.js";

const LISTED_MAX = 20;
const CLAIMS_ASKED = 1024;
const IDENTITIES_ASKED = 1000;
const AT_RISK =
  "Nothing proves that the work of a forgotten claim has ended. If it has not, two calls run on one slot.";

/** A forced restart of one identity. */
export async function planRestart(token, identityId) {
  const identity = await ask(token, `admin/identities/${encodeURIComponent(identityId)}?claims=${CLAIMS_ASKED}`);
  const broken = brokenCount(identity);
  const body = [
    el(
      "p",
      {},
      "Begins a new epoch of ",
      name(identity.id),
      " at a fresh reading. Epoch now: ",
      el("b", { text: String(identity.epoch) }),
      ".",
    ),
    ...forgotten(identity, broken),
    staying(identity),
  ];
  return {
    title: "Force a restart",
    body,
    confirm: broken > 0 ? `Forget ${count(broken, "claim")} and restart` : "Restart, forgetting nothing",
    drains: true,
    path: "admin/restart",
    request: { identity: identity.id, expectedEpoch: identity.epoch },
    report: restarted,
    changed: (frame) => changedSince(frame, identity),
  };
}

/** A forced restart of every identity. */
export async function planRestartAll(token) {
  const state = await ask(token, `admin/identities?size=${IDENTITIES_ASKED}`);
  const affected = state.identities.filter((identity) => brokenCount(identity) > 0);
  const broken = affected.reduce((sum, identity) => sum + brokenCount(identity), 0);
  const beyond = state.identitiesTotal - state.identities.length;
  const body = [
    el("p", {
      text: `Begins a new epoch of each of the ${count(state.identitiesTotal, "identity", "identities")}, at a fresh reading of each.`,
    }),
    broken === 0
      ? el("p", {}, el("b", { text: "Nothing will be forgotten:" }), " no claim is broken.")
      : el("p", {}, el("b", { text: `Will be forgotten: ${count(broken, "claim")}.` }), ` ${AT_RISK}`),
    bullets(
      affected.map((identity) => [
        name(identity.id),
        `: ${count(brokenCount(identity), "broken claim")}, epoch ${identity.epoch}`,
      ]),
      "more identities",
    ),
    beyond > 0
      ? el("p", {
          class: "problem",
          text: `${count(beyond, "more identity", "more identities")} cannot be shown here and will be restarted too.`,
        })
      : null,
  ];
  return {
    title: "Force a restart of everything",
    body: body.filter((each) => each !== null),
    confirm: broken > 0 ? `Forget ${count(broken, "claim")} and restart all` : "Restart all, forgetting nothing",
    drains: true,
    path: "admin/restart",
    request: {
      identity: "all",
      expectedEpochs: Object.fromEntries(state.identities.map(({ id, epoch }) => [id, epoch])),
    },
    report: restarted,
    changed: (frame) =>
      state.identities.map((identity) => changedSince(frame, identity)).find((told) => told !== null) ?? null,
  };
}

/** The release of one claim. */
export async function planRelease(token, identityId, claimId) {
  const identity = await ask(token, `admin/identities/${encodeURIComponent(identityId)}?claims=${CLAIMS_ASKED}`);
  const claim = identity.claims.find((each) => each.id === claimId);
  if (claim === undefined || !claim.releasable) {
    return {
      title: `Claim ${claimId} need not be released`,
      body: [el("p", { text: "It is not broken any more." })],
      confirm: null,
      changed: () => null,
    };
  }
  return {
    title: `Release claim ${claim.id}`,
    body: [
      el("p", {}, "One slot of ", name(identity.id), " is free from then on. ", AT_RISK),
      el("p", {}, el("b", { text: "Will be forgotten:" })),
      bullets([[...described(claim)]]),
    ],
    confirm: `Forget claim ${claim.id}`,
    path: `admin/identities/${encodeURIComponent(identity.id)}/claims/${claim.id}/release`,
    request: { expectedEpoch: identity.epoch },
    report: (answer) => [
      el("p", {}, "Forgotten without proof: ", ...described(answer.released), "."),
      el("p", { text: `Free slots now: ${answer.freeSlots}.` }),
    ],
    changed: (frame) => changedSince(frame, identity, claim.id),
  };
}

/** Draining, or its end. */
export async function planEntrance(token) {
  const state = await ask(token, "admin/identities?size=1");
  const { live, pendingPrompts, activePrompts } = state.sessions;
  const act = state.draining ? "undrain" : "drain";
  if (state.stopping) {
    return {
      title: "The governor stops",
      body: [el("p", { text: "There is no way back from that." })],
      confirm: null,
      changed: () => null,
    };
  }
  const going = `${count(live, "session")} with ${count(pendingPrompts, "pending prompt")}, ${activePrompts} being answered`;
  return {
    title: state.draining ? "Accept new work again" : "Drain",
    body: [
      state.draining
        ? el("p", { text: "New sessions, prompts and calls are let in again." })
        : el("p", { text: "From then on new sessions, prompts and calls get 503 daemon_draining." }),
      el("p", {}, el("b", { text: "Nothing is forgotten." }), ` What was accepted goes on: ${going}.`),
    ],
    confirm: state.draining ? "Accept new work" : "Accept nothing new",
    calm: state.draining,
    path: `admin/${act}`,
    request: {},
    report: (answer) => [
      el("p", { text: answer.draining ? "Nothing new is accepted." : "New work is accepted." }),
      el("p", {
        text:
          `Going on: ${count(answer.liveSessions, "session")}, ${count(answer.pendingPrompts, "pending prompt")}, ` +
          `${count(answer.waitingCalls, "waiting call")}, ${count(answer.heldSlots, "held slot")}.`,
      }),
    ],
    changed: (frame) => (frame.draining === state.draining ? null : "Somebody else has just changed this."),
  };
}

/** A reload of the configuration. Asks first what it would do. */
export async function planReload(token) {
  const told = await ask(token, "admin/reload", {
    body: { dryRun: true, reason: "asked by the page before a reload" },
    timeoutMs: 30_000,
  });
  const nothing = told.changes.length + told.modelsAdded.length + told.modelsRemoved.length === 0;
  return {
    title: "Reload the configuration",
    body: nothing
      ? [el("p", { text: "Nothing would change: what is in force is what the file says." }), ...leaving(told.leaving)]
      : [
          el(
            "p",
            {},
            el("b", { text: "No claim is forgotten." }),
            " What was accepted runs to its end. These changes would take effect:",
          ),
          ...changes(told),
        ],
    confirm: nothing ? null : "Put it in force",
    path: "admin/reload",
    request: {},
    report: (answer) => [el("p", { text: "In force now:" }), ...changes(answer), ...leaving(answer.leaving)],
    changed: () => null,
  };
}

function forgotten(identity, broken) {
  if (broken === 0) return [el("p", {}, el("b", { text: "Nothing will be forgotten:" }), " no claim is broken.")];
  const claims = identity.claims.filter((claim) => claim.releasable);
  return [
    el("p", {}, el("b", { text: `Will be forgotten: ${count(broken, "claim")}.` }), ` ${AT_RISK}`),
    bullets(
      claims.map((claim) => [...described(claim)]),
      "more claims",
      broken,
    ),
  ];
}

function staying(identity) {
  const { running, timed_out: timedOut } = identity.states;
  if (running + timedOut === 0) return el("p", { text: "No call is open." });
  return el("p", { text: `Stays: ${running} running and ${timedOut} timed out. Their own answer or break decides.` });
}

function described(claim) {
  const where = claim.epoch === undefined || claim.epoch === null ? "" : `, sent in epoch ${claim.epoch}`;
  return [`claim ${claim.id}, ${wordOf(claim.state)} for ${span(claim.ageMs)}, of `, ...served(claim.serves), where];
}

/** A list of at most twenty lines, each a list of nodes. */
function bullets(lines, rest = "more", total = lines.length) {
  const list = el("ul", {}, ...lines.slice(0, LISTED_MAX).map((line) => el("li", {}, ...line)));
  const more = total - Math.min(lines.length, LISTED_MAX);
  if (more > 0) list.append(el("li", { text: `and ${more.toLocaleString("en")} ${rest}` }));
  return list;
}

/** What of an identity is no more as it was when the plan was made. */
function changedSince(frame, before, claimId = null) {
  const now = frame.identities.find((each) => each.id === before.id);
  if (now === undefined) return null;
  if (now.epoch !== before.epoch)
    return `The epoch of ${before.id} is ${now.epoch} now; this act is for epoch ${before.epoch} and would be refused.`;
  if (claimId === null && brokenCount(now) !== brokenCount(before))
    return `${before.id} has ${count(brokenCount(now), "broken claim")} now.`;
  return null;
}

function restarted(answer) {
  const told = answer.results.slice(0, 100).map((result) => {
    if (!result.ok)
      return el(
        "section",
        {},
        el("h3", {}, name(result.identity)),
        el("p", { class: "problem", text: `Nothing was done: ${result.error} (${result.code})` }),
      );
    const claims = result.forgottenClaims;
    return el(
      "section",
      { "data-restarted": result.identity },
      el("h3", {}, name(result.identity)),
      el("p", {
        text: `Epoch ${result.previousEpoch} → ${result.epoch}. Proven ended by the fresh reading: ${result.provenClaims}. Still open: ${result.openClaims}.`,
      }),
      el("p", {
        text:
          claims.length === 0 ? "Nothing was forgotten." : `Forgotten without proof: ${count(claims.length, "claim")}.`,
      }),
      claims.length === 0
        ? null
        : bullets(
            claims.map((claim) => [...described(claim)]),
            "more claims",
          ),
    );
  });
  if (answer.results.length > 100)
    told.push(el("p", { text: `and ${answer.results.length - 100} more; the audit log has them.` }));
  return told;
}

function changes(told) {
  const lines = told.changes.map(({ key, before, after }) => [name(key), ": ", value(before), " → ", value(after)]);
  if (told.modelsAdded.length > 0) lines.push([`models added: ${listed(told.modelsAdded)}`]);
  if (told.modelsRemoved.length > 0) lines.push([`models removed: ${listed(told.modelsRemoved)}`]);
  return [bullets(lines, "more changes")];
}

function leaving(identities) {
  if (identities.length === 0) return [];
  return [
    el("p", { text: "Leaving, as soon as nothing is left of them:" }),
    bullets(
      identities.map((each) => [
        name(each.identity),
        `: ${count(brokenCount(each), "broken claim")}, ${count(each.states.running + each.states.timed_out, "open call")}, ` +
          `${count(each.waitingCalls, "waiting call")}, ${count(each.pendingPrompts, "pending prompt")}`,
      ]),
      "more identities",
    ),
  ];
}

function value(told) {
  return el("code", {
    text: told === null ? "not set" : brief(typeof told === "string" ? told : JSON.stringify(told), 80),
  });
}
