// The states of a claim: what each is called, its letter in a cell, and what it means.

/** In the order in which an operator worries. */
export const STATES = {
  quarantined: {
    letter: "Q",
    word: "quarantined",
    meaning: "its connection is gone and nothing can prove any more that its work has ended",
  },
  awaiting_baseline: {
    letter: "B",
    word: "awaiting baseline",
    meaning: "its connection is gone, and there is no reading yet to measure from",
  },
  reconciling: {
    letter: "C",
    word: "reconciling",
    meaning: "its connection is gone; the backend's counters are asked whether its work has ended",
  },
  timed_out: {
    letter: "T",
    word: "timed out",
    meaning: "its caller has left; it still runs, and its answer is the proof",
  },
  running: { letter: "R", word: "running", meaning: "its caller waits for the answer" },
};
export const FREE = { letter: "–", word: "free", meaning: "nothing holds it" };

/** What a state is called; one that this page does not know by its own name. */
export function wordOf(state) {
  return STATES[state]?.word ?? state;
}

/** The claims of an identity that hold a slot although their connection is gone. */
export function brokenCount(identity) {
  const { reconciling, awaiting_baseline: awaiting, quarantined } = identity.states;
  return reconciling + awaiting + quarantined;
}

/** Why an operator should look at an identity, in sentences; none if all is well. */
export function troubles(identity) {
  const told = [identity.problem, ...identity.remarks].filter((sentence) => sentence !== null);
  const stuck = identity.states.quarantined;
  if (identity.problem === null && stuck > 0) {
    const whose = stuck === 1 ? "slot is held by a call" : "slots are held by calls";
    told.push(`${stuck.toLocaleString("en")} ${whose} that nothing can prove ended`);
  }
  return told;
}
