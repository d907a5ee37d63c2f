// How the page asks its gateway. The key is kept in this tab only.

const KEPT = "studiofleet-key";

export const key = () => sessionStorage.getItem(KEPT) ?? "";
export const keep = (value) => sessionStorage.setItem(KEPT, value);
export const forget = () => sessionStorage.removeItem(KEPT);

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// A path of this gateway; throws Refused with the gateway's own words.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key()) headers.authorization = `Bearer ${key()}`;
  if (options.body) headers["content-type"] = "application/json";
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  throw new Refused(answer.status, told?.error?.message ?? `the gateway answered ${answer.status}`);
}

// The events of a stream as they come: parsed JSON, without the closing [DONE].
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}
