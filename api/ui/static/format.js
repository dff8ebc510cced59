// Numbers, moments and lists in words.

/** A span of time, such as "3 min 07 s". */
export function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${two(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${two(minutes % 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** The same for a narrow place, such as "3m". */
export function shortSpan(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

/** A moment in the reader's own time: the time alone for today, else with its date. */
export function moment(unixMs) {
  const at = new Date(unixMs);
  const time = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
  if (at.toDateString() === new Date().toDateString()) return time.format(at);
  return new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" }).format(at);
}

/** A number with its thing: "1 claim", "2 claims". */
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** A list in words, of at most `max` entries. */
export function listed(entries, max = 12) {
  const told = entries.slice(0, max).map(String);
  if (entries.length > max) told.push(`${entries.length - max} more`);
  return told.length < 2 ? told.join("") : `${told.slice(0, -1).join(", ")} and ${told.at(-1)}`;
}

/** A text of at most so many characters (and no half ones), with a mark where it was cut. */
export function cut(text, charsMax) {
  if (text.length <= charsMax) return text;
  const begun = text.slice(0, charsMax - 1);
  return `${/[\ud800-\udbff]$/.test(begun) ? begun.slice(0, -1) : begun}…`;
}

/** The beginning of an id. */
export function brief(id, chars = 8) {
  return cut(id, chars + 1);
}

/** What is shown of a boot identity: enough to tell two apart. */
export function bootName(boot) {
  return boot === null ? "not known" : brief(boot.slice(boot.indexOf(":") + 1), 10);
}

function two(number) {
  return String(number).padStart(2, "0");
}
