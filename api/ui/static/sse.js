// Server-sent events, read from a stream of text. EventSource cannot be used: it sends no Authorization.

const CHARS_MAX = 64 * 1024 * 1024;

/** Cuts text into frames. */
export class SseParser {
  /** @param {(frame: {event: string, data: string, id: string|null}) => void} onFrame is given every whole frame. */
  constructor(onFrame) {
    this.onFrame = onFrame;
    this.rest = [];
    this.restChars = 0;
    this.clear();
  }

  /** More of the text. */
  push(text) {
    let from = 0;
    for (let end = text.indexOf("\n"); end !== -1; end = text.indexOf("\n", from)) {
      this.rest.push(text.slice(from, end));
      const line = this.rest.join("");
      this.rest = [];
      this.restChars = 0;
      from = end + 1;
      this.line(line.endsWith("\r") ? line.slice(0, -1) : line);
    }
    this.rest.push(text.slice(from));
    this.restChars += text.length - from;
    if (this.restChars > CHARS_MAX) throw new Error("a line of the stream is too long");
  }

  line(line) {
    if (line === "") {
      if (this.data.length > 0) this.onFrame({ event: this.event, data: this.data.join("\n"), id: this.id });
      this.clear();
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
    else if (field === "id" && !value.includes("\0")) this.id = value;
  }

  clear() {
    this.event = "message";
    this.data = [];
    this.id = null;
  }
}
