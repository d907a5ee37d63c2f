// What people use from Node: OpenAI's client and the Vercel AI SDK. BASE_URL is a gateway's with a fake
// engine, which says TEXT or TWO_CALLS when asked in those words.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const { BASE_URL, TEXT, TWO_CALLS } = process.env;
const MODEL = "fake-model";
const settings = { baseURL: `${BASE_URL}/v1`, apiKey: "none" };
const client = new OpenAI({ ...settings, maxRetries: 0 });
const anything = { type: "object", properties: {}, additionalProperties: true };
const CALLS = [["f", { a: 1, b: "<é>" }], ["g", {}]];
const user = (content) => [{ role: "user", content }];

const chatTools = ["f", "g"].map((name) => ({ type: "function", function: { name, parameters: anything } }));
const responseTools = ["f", "g"].map((name) => ({ type: "function", name, parameters: anything, strict: false }));

function chatCalls(message) {
  return message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
}

function responseCalls(response) {
  const calls = response.output.filter((item) => item.type === "function_call");
  return calls.map((call) => [call.name, JSON.parse(call.arguments)]);
}

test("openai: models are listed", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.ok(ids.includes(MODEL));
});

test("openai: a chat, whole and streamed", async () => {
  const asked = { model: MODEL, messages: user(TEXT) };
  const whole = await client.chat.completions.create(asked);
  assert.equal(whole.choices[0].message.content, "Hello there.");
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.equal(streamed.choices[0].message.content, "Hello there.");
});

test("openai: calls in a chat, whole and streamed", async () => {
  const asked = { model: MODEL, messages: user(TWO_CALLS), tools: chatTools };
  const whole = await client.chat.completions.create(asked);
  assert.deepEqual(chatCalls(whole.choices[0].message), CALLS);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(chatCalls(streamed.choices[0].message), CALLS);
  assert.equal(streamed.choices[0].finish_reason, "tool_calls");
});

test("openai: a response, whole and streamed", async () => {
  const asked = { model: MODEL, input: TEXT };
  assert.equal((await client.responses.create(asked)).output_text, "Hello there.");
  assert.equal((await client.responses.stream(asked).finalResponse()).output_text, "Hello there.");
});

test("openai: calls in a response, whole and streamed", async () => {
  const asked = { model: MODEL, input: TWO_CALLS, tools: responseTools };
  assert.deepEqual(responseCalls(await client.responses.create(asked)), CALLS);
  assert.deepEqual(responseCalls(await client.responses.stream(asked).finalResponse()), CALLS);
});

test("openai: a model that is not served is an error of its own class", async () => {
  const asked = client.chat.completions.create({ model: "absent", messages: user("hi") });
  await assert.rejects(asked, OpenAI.NotFoundError);
});

const openai = createOpenAI(settings);
const providers = {
  "@ai-sdk/openai chat": openai.chat(MODEL),
  "@ai-sdk/openai responses": openai.responses(MODEL),
  "@ai-sdk/openai-compatible": createOpenAICompatible({ ...settings, name: "cluster" })(MODEL),
  "@ai-sdk/anthropic": createAnthropic(settings)(MODEL),
};
const aiTools = Object.fromEntries(
  ["f", "g"].map((name) => [name, tool({ description: name, inputSchema: jsonSchema(anything) })]),
);
const aiCalls = (calls) => calls.map((call) => [call.toolName, call.input]);

for (const [name, model] of Object.entries(providers)) {
  test(`${name}: text, whole and streamed`, async () => {
    const asked = { model, prompt: TEXT, maxRetries: 0 };
    assert.equal((await generateText(asked)).text, "Hello there.");
    assert.equal(await streamText(asked).text, "Hello there.");
  });

  test(`${name}: calls, whole and streamed`, async () => {
    const asked = { model, prompt: TWO_CALLS, tools: aiTools, maxRetries: 0 };
    assert.deepEqual(aiCalls((await generateText(asked)).toolCalls), CALLS);
    const streamed = streamText(asked);
    assert.deepEqual(aiCalls(await streamed.toolCalls), CALLS);
    assert.equal(await streamed.finishReason, "tool-calls");
  });
}

test("@ai-sdk/openai responses: a conversation goes on with references to what was said", async () => {
  let sent = "";
  const watched = (url, request) => {
    sent = request.body;
    return fetch(url, request);
  };
  const model = createOpenAI({ ...settings, fetch: watched }).responses(MODEL);
  const messages = user(TWO_CALLS);
  const first = await generateText({ model, messages, tools: aiTools, maxRetries: 0 });
  const results = first.toolCalls.map((call) => ({
    type: "tool-result",
    toolCallId: call.toolCallId,
    toolName: call.toolName,
    output: { type: "text", value: "done" },
  }));
  messages.push(...first.response.messages, { role: "tool", content: results }, ...user(TEXT));
  const second = await generateText({ model, messages, tools: aiTools, maxRetries: 0 });
  assert.equal(second.text, "Hello there.");
  assert.ok(sent.includes("item_reference"));
});
