// What the page asks of the governor. The token goes into the header of each request and nowhere else.

const TIMEOUT_MS = 10_000;

/** The governor answered that it will not. */
export class Refused extends Error {
  constructor(status, body) {
    super(typeof body.error === "string" ? body.error : `The governor answered ${status}`);
    this.status = status;
    this.code = typeof body.code === "string" ? body.code : "";
    this.body = body;
  }
}

/**
 * A request for JSON.
 * @param {string} token
 * @param {string} path below the folder that this page is in.
 * @param {{body?: object, signal?: AbortSignal, timeoutMs?: number}} options a body makes it a POST.
 * @throws {Refused} the answer is no success.
 */
export async function ask(token, path, { body, signal, timeoutMs = TIMEOUT_MS } = {}) {
  const limit = AbortSignal.timeout(timeoutMs);
  const answer = await fetch(path, {
    ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
    headers: { ...bearer(token), ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    signal: signal === undefined ? limit : AbortSignal.any([signal, limit]),
    ...ALONE,
  });
  const told = await json(answer);
  if (!answer.ok) throw new Refused(answer.status, told);
  return told;
}

/**
 * Opens the live state.
 * @param {string} token
 * @param {number} afterId the newest event that is known.
 * @param {AbortSignal} signal
 * @throws {Refused} the answer is no success.
 */
export async function listen(token, afterId, signal) {
  const headers = { ...bearer(token), Accept: "text/event-stream" };
  if (afterId > 0) headers["Last-Event-ID"] = String(afterId);
  const answer = await fetch("admin/events", { headers, signal, ...ALONE });
  if (!answer.ok) throw new Refused(answer.status, await json(answer));
  return answer.body;
}

/** Any error in a sentence for the operator. */
export function sentence(error) {
  if (error instanceof Refused) {
    if (error.code === "origin_not_allowed") {
      return (
        `The governor does not know this page's address (${location.origin}). ` +
        "Open the page by the governor's own address, or add this one to server.allow_origins."
      );
    }
    return error.message;
  }
  if (error instanceof DOMException && error.name === "TimeoutError") return "The governor did not answer in time.";
  if (error instanceof DOMException && error.name === "AbortError") return "Given up.";
  return "The governor could not be reached.";
}

const ALONE = { cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" };

function bearer(token) {
  return { Authorization: `Bearer ${token}` };
}

async function json(answer) {
  try {
    const told = await answer.json();
    return typeof told === "object" && told !== null ? told : {};
  } catch (error) {
    if (error instanceof SyntaxError) return {};
    throw error;
  }
}
