// Talks to a running `llama serve` with OpenAI's package for Node, and checks what it makes of the answers.
//
//   npm ci
//   node clients.mjs ADDRESS KEY
//
// Prints a line for each check; the exit code is 1 if one fails.

import assert from "node:assert/strict";
import OpenAI from "openai";

const [address, apiKey] = process.argv.slice(2);
const options = { baseURL: `${address}/v1`, maxRetries: 0, timeout: 120_000 };
const client = new OpenAI({ ...options, apiKey });
const model = "any";
const messages = [{ role: "user", content: "Say hello in five words." }];
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Weather of a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const greedy = { model, messages, max_tokens: 8, temperature: 0 };

const checks = {
  async chat() {
    const answer = await client.chat.completions.create({ ...greedy, logprobs: true, top_logprobs: 2 });
    const [choice] = answer.choices;
    assert.ok(choice.message.content);
    assert.ok(["stop", "length"].includes(choice.finish_reason));
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
    assert.equal(choice.logprobs.content[0].top_logprobs.length, 2);
  },

  async stream() {
    const whole = (await client.chat.completions.create(greedy)).choices[0].message.content;
    let [text, usage] = ["", null];
    const stream = await client.chat.completions.create({
      ...greedy,
      stream: true,
      stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      usage = chunk.usage ?? usage;
      text += chunk.choices[0]?.delta.content ?? "";
    }
    assert.equal(text, whole);
    assert.ok(usage.completion_tokens > 0);
  },

  async "stream that is left"() {
    const stream = await client.chat.completions.create({ ...greedy, max_tokens: 1000, stream: true });
    for await (const _ of stream) break;
    assert.ok((await client.chat.completions.create(greedy)).choices[0].message.content);
  },

  async tools() {
    const answer = await client.chat.completions.create({ ...greedy, tools: [tool] });
    assert.ok(["stop", "length", "tool_calls"].includes(answer.choices[0].finish_reason));
  },

  async "structured output"() {
    const schema = { type: "object", properties: { word: { enum: ["yes", "no"] } }, required: ["word"] };
    const answer = await client.chat.completions.create({
      ...greedy,
      max_tokens: 40,
      response_format: { type: "json_schema", json_schema: { name: "word", schema: { ...schema, additionalProperties: false } } },
    });
    assert.ok(["yes", "no"].includes(JSON.parse(answer.choices[0].message.content).word));
  },

  async completions() {
    const answer = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 4 });
    assert.ok(answer.choices[0].text);
  },

  async responses() {
    const answer = await client.responses.create({ model, input: "Say hello.", max_output_tokens: 16 });
    assert.ok(answer.output_text && answer.usage.output_tokens > 0);
    const kinds = [];
    for await (const event of await client.responses.create({ model, input: "Hello.", max_output_tokens: 4, stream: true })) {
      kinds.push(event.type);
    }
    assert.equal(kinds[0], "response.created");
    assert.ok(["response.completed", "response.incomplete"].includes(kinds.at(-1)));
  },

  async models() {
    const models = (await client.models.list()).data;
    assert.equal(models[0].object, "model");
  },

  async errors() {
    const stranger = new OpenAI({ ...options, apiKey: "wrong" });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
    const create = (more) => client.chat.completions.create({ ...greedy, ...more });
    await assert.rejects(create({ messages: [] }), OpenAI.BadRequestError);
    await assert.rejects(create({ temperature: "hot" }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError && error.message.includes("temperature"), error);
      return true;
    });
    await assert.rejects(client.get("/nothing"), OpenAI.NotFoundError);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  const start = performance.now();
  try {
    await check();
    console.log(`ok      node: ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  node: ${name}\n${error.stack}`);
  }
}
process.exitCode = failed ? 1 : 0;
