// What the scripts share: the client's own package, clients whose requests are counted, and a script's beginning and end.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

export const options = JSON.parse(process.argv[2]);

const home = path.join(options.prefix, 'node_modules', '@qwen-code', 'sdk');
const manifest = JSON.parse(fs.readFileSync(path.join(home, 'package.json'), 'utf8'));
const entry = manifest.exports['./daemon'].import;
export const sdk = await import(pathToFileURL(path.join(home, entry.default ?? entry)));

/** A client, and every request it has sent: {method, path, status}. */
export function makeClient(extra = {}) {
  const requests = [];
  const counted = async (input, init) => {
    const sent = { method: init?.method ?? 'GET', path: new URL(input).pathname, status: 0 };
    requests.push(sent);
    const response = await fetch(input, init);
    sent.status = response.status;
    return response;
  };
  const client = new sdk.DaemonClient({ baseUrl: options.url, fetch: counted, ...extra });
  return { client, requests };
}

/** The body of a prompt. */
export function ask(text, extra = {}) {
  return { prompt: [{ type: 'text', text }], ...extra };
}

/** A session of its own. */
export function openSession(client, model) {
  return sdk.DaemonSessionClient.createOrAttach(client, { modelServiceId: model, sessionScope: 'thread' });
}

/** Subscribes and keeps what is heard. `until` waits for an event, `ended` for the end of the stream. */
export function listen(session, subscribe = {}) {
  const stop = new AbortController();
  const heard = { events: [], error: undefined, stop: () => stop.abort() };
  const waiting = new Set();
  heard.ended = (async () => {
    try {
      for await (const event of session.events({ ...subscribe, signal: stop.signal })) {
        heard.events.push(event);
        for (const check of waiting) check();
      }
    } catch (error) {
      heard.error = error;
    }
  })();
  heard.until = (wanted) =>
    new Promise((resolve) => {
      const check = () => {
        const found = heard.events.find(wanted);
        if (found !== undefined) {
          waiting.delete(check);
          resolve(found);
        }
      };
      waiting.add(check);
      check();
    });
  return heard;
}

export function kind(event) {
  return event.type === 'session_update' ? event.data.update.sessionUpdate : event.type;
}

export function isTerminal(event) {
  return event.type === 'turn_complete' || event.type === 'turn_error';
}

export function terminalsOf(events, promptId) {
  return events.filter((event) => isTerminal(event) && event.data.promptId === promptId);
}

/** Everything the model said, in order. */
export function said(events) {
  return events
    .filter((event) => kind(event) === 'agent_message_chunk')
    .map((event) => event.data.update.content.text)
    .join('');
}

export function assertNumberedWithoutGaps(events) {
  const ids = events.map((event) => event.id).filter((id) => id !== undefined);
  ids.forEach((id, index) => assert.equal(id, ids[0] + index, `ids ${ids}`));
  return ids;
}

// The client lists these types, but has no schema for them.
const WITHOUT_SCHEMA = ['prompt_cancelled', 'replay_complete'];

/** Every event is one that the client's own schema knows, so that its reducers take it. */
export function assertKnown(events) {
  for (const event of events) {
    if (WITHOUT_SCHEMA.includes(event.type)) continue;
    assert.ok(sdk.asKnownDaemonEvent(event) !== undefined, `the client does not know ${JSON.stringify(event)}`);
  }
}

export async function assertRejects(promise, wanted) {
  try {
    await promise;
  } catch (error) {
    wanted(error);
    return error;
  }
  assert.fail('it was not rejected');
}

/** Tells the test what was found, and ends although connections may be open. */
export function finish(told = {}) {
  process.stdout.write(JSON.stringify(told), () => process.exit(0));
}
