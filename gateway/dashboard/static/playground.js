// A talk with a model of the fleet.

import { ask, events } from "./api.js";
import { byId, element, say } from "./dom.js";

let models = new Map();
let messages = [];
let running = null;

export async function readModels() {
  try {
    const told = await (await ask("/v1/models")).json();
    models = new Map(told.data.map((each) => [each.id, each]));
    say(byId("answering"), models.size ? "" : "No model is configured.");
  } catch (error) {
    say(byId("answering"), error.message);
  }
  const before = byId("model").value;
  byId("model").replaceChildren(...[...models.keys()].map((id) => element("option", { textContent: id })));
  if (models.has(before)) byId("model").value = before;
  showSight();
}

function showSight() {
  const sees = models.get(byId("model").value)?.input_modalities.includes("image") ?? false;
  byId("seeing").hidden = !sees;
  if (!sees) byId("pictures").value = "";
}

const dataUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

async function readQuestion() {
  const text = byId("message").value;
  const files = [...byId("pictures").files];
  if (!files.length) return { role: "user", content: text };
  const parts = await Promise.all(files.map(async (file) => ({
    type: "image_url", image_url: { url: await dataUrl(file) },
  })));
  return { role: "user", content: [...parts, { type: "text", text }] };
}

function readTools(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`the tools are no JSON: ${error.message}`);
  }
}

function body(question) {
  const tools = byId("tools").value.trim();
  const told = {
    model: byId("model").value,
    messages: [...messages, question],
    temperature: byId("temperature").valueAsNumber,
    max_tokens: byId("most").valueAsNumber,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  if (tools) told.tools = readTools(tools);
  return JSON.stringify(told);
}

function showQuestion(question) {
  const turn = element("li", {}, element("h3", { textContent: "You" }));
  const parts = Array.isArray(question.content) ? question.content : [{ text: question.content }];
  for (const part of parts) {
    if (part.image_url) turn.append(element("img", { src: part.image_url.url, alt: "a picture that was sent" }));
    else turn.append(element("p", { className: "text", textContent: part.text }));
  }
  byId("talk").append(turn);
}

// One answer as it grows: reasoning, text and calls apart.
class Answer {
  constructor(worker) {
    this.worker = worker;
    this.beganAt = performance.now();
    this.text = "";
    this.calls = [];
    this.tokens = 0;
    this.told = element("p", { className: "told" });
    this.element = element("li", {}, element("h3", { textContent: "Answer" }), this.told);
    byId("talk").append(this.element);
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.tokens = event.usage.completion_tokens;
    const delta = event.choices?.[0]?.delta ?? {};
    const thought = delta.reasoning_content;
    if (thought || delta.content || delta.tool_calls) this.note();
    if (thought) this.part("reasoning", "Reasoning").append(thought);
    if (delta.content) {
      this.text += delta.content;
      this.part("answer").append(delta.content);
    }
    for (const call of delta.tool_calls ?? []) this.takeCall(call);
    this.tell();
  }

  note() {
    this.lastAt = performance.now();
    this.firstAt ??= this.lastAt;
  }

  // Where text of that kind goes.
  part(kind, title = "") {
    this[kind] ??= this.makePart(kind, title);
    return this[kind];
  }

  makePart(kind, title) {
    const text = element("p", { className: "text" });
    const shown = title ? element("details", { open: true, className: kind },
      element("summary", { textContent: title }), text) : text;
    this.told.before(shown);
    return text;
  }

  takeCall({ index, id, function: called }) {
    let call = this.calls[index];
    if (!call) {
      const name = element("strong");
      const code = element("code", { className: "text" });
      call = this.calls[index] = { id, name: "", given: "", shown: { name, code } };
      this.told.before(element("div", { className: "call" }, "Tool call ", name, " ", code));
    }
    call.name += called?.name ?? "";
    call.given += called?.arguments ?? "";
    say(call.shown.name, call.name);
    say(call.shown.code, call.given);
  }

  tell(end = "") {
    const words = [`worker ${this.worker}`];
    if (this.firstAt) {
      const took = (this.lastAt - this.firstAt) / 1000;
      words.push(`first token ${((this.firstAt - this.beganAt) / 1000).toFixed(2)} s`);
      words.push(`${this.tokens} tokens`);
      if (took > 0 && this.tokens > 1) words.push(`${((this.tokens - 1) / took).toFixed(1)} tokens/s`);
    }
    if (end) words.push(end);
    say(this.told, words.join(" · "));
  }

  message() {
    const said = { role: "assistant", content: this.text || null };
    if (this.calls.length) {
      said.tool_calls = this.calls.map(({ id, name, given }) => ({
        id, type: "function", function: { name, arguments: given },
      }));
    }
    return said;
  }
}

async function send(event) {
  event.preventDefault();
  if (running) return;
  const own = new AbortController();
  running = own;
  let question = null;
  let answer = null;
  let words = "Answered.";
  byId("send").disabled = true;
  byId("stop").disabled = false;
  say(byId("answering"), "Answering …");
  try {
    question = await readQuestion();
    const asked = body(question);
    showQuestion(question);
    const beganAt = performance.now();
    const told = await ask("/v1/chat/completions", { method: "POST", body: asked, signal: own.signal });
    answer = new Answer(told.headers.get("x-worker-id") ?? "unknown");
    answer.beganAt = beganAt;
    for await (const each of events(told)) answer.take(each);
  } catch (error) {
    words = own.signal.aborted ? "Stopped." : `Failed: ${error.message}`;
    answer?.tell(words);
  }
  if (running !== own) return; // the talk was cleared
  running = null;
  if (answer?.firstAt) remember(question, answer);
  byId("send").disabled = false;
  byId("stop").disabled = true;
  say(byId("answering"), words);
}

// Part of the talk from now on, also when it was stopped.
function remember(question, answer) {
  messages.push(question, answer.message());
  byId("message").value = "";
  byId("pictures").value = "";
}

byId("ask").addEventListener("submit", send);
byId("model").addEventListener("change", showSight);
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", () => {
  running?.abort();
  running = null;
  byId("send").disabled = false;
  byId("stop").disabled = true;
  messages = [];
  byId("talk").replaceChildren();
  say(byId("answering"), "");
});
