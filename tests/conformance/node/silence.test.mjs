// Streams of a gateway (BASE_URL) that says nothing for long but gives signs of life: TEXT makes it say "at last".
import assert from "node:assert/strict";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { streamText } from "ai";
import OpenAI from "openai";

const { BASE_URL, TEXT } = process.env;
const settings = { baseURL: `${BASE_URL}/v1`, apiKey: "none" };
const client = new OpenAI({ ...settings, maxRetries: 0 });
const model = "fake-model";

test("openai", { concurrency: true }, async () => {
  const chat = client.chat.completions.stream({ model, messages: [{ role: "user", content: TEXT }] });
  const response = client.responses.stream({ model, input: TEXT });
  assert.equal((await chat.finalChatCompletion()).choices[0].message.content, "at last");
  assert.equal((await response.finalResponse()).output_text, "at last");
});

test("Vercel AI SDK", { concurrency: true }, async () => {
  const openai = createOpenAI(settings);
  const models = [openai.chat(model), openai.responses(model), createAnthropic(settings)(model)];
  const texts = models.map((each) => streamText({ model: each, prompt: TEXT, maxRetries: 0 }).text);
  assert.deepEqual(await Promise.all(texts), ["at last", "at last", "at last"]);
});
