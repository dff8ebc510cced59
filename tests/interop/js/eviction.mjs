// A reader that stops reading is cut off; the others, the session and its turns are untouched, and it misses nothing.

import assert from 'node:assert/strict';
import net from 'node:net';
import { ask, assertKnown, assertNumberedWithoutGaps, finish, listen, makeClient, openSession, options, terminalsOf } from './lib.mjs';

const { client } = makeClient();
const session = await openSession(client, 'sentiment');
const heard = listen(session);

// The client's own fetch would read ahead, so this reader is a socket. It takes the first bytes, and then nothing.
const { hostname, port } = new URL(options.url);
const stuck = net.connect(Number(port), hostname);
const begun = new Promise((resolve) => stuck.once('data', (bytes) => (stuck.pause(), resolve(bytes))));
stuck.write(
  `GET /session/${session.sessionId}/events?maxQueued=16 HTTP/1.1\r\nHost: ${hostname}:${port}\r\n` +
    'Accept: text/event-stream\r\nLast-Event-ID: 0\r\n\r\n',
);
const first = (await begun).toString('latin1');
assert.match(first, /^HTTP\/1\.1 200 /);

const words = 'good '.repeat(options.promptBytes / 5);
for (let turn = 0; turn < options.turns; turn++) await session.prompt(ask(words));

// What it finds when it reads on: whole frames up to where it was cut off, and the end.
const rest = [];
const ended = new Promise((resolve) => {
  stuck.on('data', (bytes) => rest.push(bytes));
  stuck.on('error', resolve);
  stuck.on('close', resolve);
});
stuck.resume();
await ended;
const frames = (first + Buffer.concat(rest).toString('latin1')).split('\n\n');
frames.pop(); // not whole
const got = frames.map((frame) => /^(?:[0-9a-f]+\r\n)?id: (\d+)$/m.exec(frame)).filter(Boolean).map((found) => Number(found[1]));
const last = got.at(-1) ?? 0;
const published = heard.events.at(-1).id;
assert.ok(last < published, 'it was cut off before the end');

// The next one continues where the whole frames ended.
const again = [];
for await (const event of client.subscribeEvents(session.sessionId, { lastEventId: last })) {
  again.push(event);
  if (event.type === 'replay_complete') break;
}
assertKnown(again);
const replayed = assertNumberedWithoutGaps(again);
assert.deepEqual([replayed[0], replayed.at(-1)], [last + 1, published]);
assert.equal(heard.events.filter((event) => event.type === 'turn_complete').length, options.turns);
assert.deepEqual(await session.prompt(ask('fine')), { stopReason: 'end_turn' });
finish({ cutOffAfter: last, published });
