// The server: what it is, and answers as they come.

import type { Call, Message } from "./conversation";
import { sampling, settings } from "./settings.svelte";

export interface Properties {
  name: string;
  path: string;
  context: number;
  vision: boolean;
  /** What a server of many models offers; empty for a server of one. */
  models: Offered[];
}

/** A model of a server of many. */
export interface Offered {
  name: string;
  /** unloaded, loading, loaded or sleeping. */
  status: string;
}

/** Pieces of an answer. */
export interface Piece {
  content?: string;
  reasoning?: string;
  calls?: { index: number; id?: string; name?: string; arguments?: string }[];
  speed?: number;
  tokens?: number;
  prompt?: number;
  /** Why it ended. */
  reason?: string;
}

function headers(): Record<string, string> {
  return settings.key ? { Authorization: `Bearer ${settings.key}` } : {};
}

async function failure(response: Response): Promise<Error> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return new Error(typeof error === "string" ? error : error.message);
  } catch {
    return new Error(`${response.status} ${response.statusText}`);
  }
}

async function get(path: string): Promise<any> {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await failure(response);
  return response.json();
}

function describe(all: any): Properties {
  return {
    name: all.model_alias || all.model_path || "model",
    path: all.model_path ?? "",
    context: all.default_generation_settings?.n_ctx ?? 0,
    vision: all.modalities?.vision ?? false,
    models: [],
  };
}

/** What the server is; of many models it is about the one that was chosen, else one that is loaded, else the first. */
export async function properties(): Promise<Properties> {
  const all = await get("props");
  if (all.role !== "router") return describe(all);
  const listed: any[] = (await get("models")).data;
  const models = listed.map(({ id, status }): Offered => ({ name: id, status: status?.value ?? "" }));
  const ready = ({ status }: Offered) => status === "loaded" || status === "sleeping";
  const chosen = models.find(({ name }) => name === settings.model) ?? models.find(ready) ?? models[0];
  if (!chosen) throw new Error("the server has no models");
  // Looking at a model does not load it; what it is like is known once it is there.
  const about = ready(chosen) ? await get(`props?autoload=0&model=${encodeURIComponent(chosen.name)}`).catch(() => ({})) : {};
  return { ...describe(about), name: chosen.name, models };
}

function toRequest(message: Message): object {
  const { role, content, attachments = [], calls, call } = message;
  if (role === "tool") return { role, content, tool_call_id: call };
  if (role === "assistant") {
    const tool_calls = calls?.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
    return { role, content, ...(tool_calls?.length ? { tool_calls } : {}) };
  }
  const files = attachments.filter(({ kind }) => kind === "text");
  const images = attachments.filter(({ kind }) => kind === "image");
  const text = [...files.map(({ name, data }) => `File ${name}:\n\`\`\`\n${data}\n\`\`\``), content].join("\n\n");
  if (images.length === 0) return { role, content: text };
  const parts = images.map(({ data }) => ({ type: "image_url", image_url: { url: data } }));
  return { role, content: [...parts, { type: "text", text }] };
}

function body(model: string | null, system: string, messages: Message[]): object {
  const all: Record<string, unknown> = {
    ...(model === null ? {} : { model }),
    messages: [...(system.trim() ? [{ role: "system", content: system }] : []), ...messages.map(toRequest)],
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of sampling) if (settings[name] !== null) all[name] = settings[name];
  if (settings.thinking !== "model") all.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.tools.trim()) all.tools = JSON.parse(settings.tools);
  return all;
}

/** Asks for an answer, of this model if there are several; throws what the server says is wrong. */
export async function* answer(
  model: string | null, system: string, messages: Message[], signal: AbortSignal,
): AsyncGenerator<Piece> {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(body(model, system, messages)),
    signal,
  });
  if (!response.ok || !response.body) throw await failure(response);
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message ?? String(event.error));
    const piece: Piece = {};
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    if (delta.content) piece.content = delta.content;
    if (delta.reasoning_content) piece.reasoning = delta.reasoning_content;
    if (delta.tool_calls) {
      piece.calls = delta.tool_calls.map((call: any) => ({ index: call.index, id: call.id, ...call.function }));
    }
    if (choice?.finish_reason) piece.reason = choice.finish_reason;
    if (event.timings) piece.speed = event.timings.predicted_per_second;
    if (event.usage) [piece.tokens, piece.prompt] = [event.usage.completion_tokens, event.usage.prompt_tokens];
    yield piece;
  }
}

/** Values of a stream of server-sent events. */
async function* events(stream: ReadableStream<Uint8Array>): AsyncGenerator<any> {
  const reader = stream.pipeThrough(new TextDecoderStream() as any).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    held += value ?? "";
    const parts = held.split("\n\n");
    held = parts.pop() ?? "";
    for (const part of parts) {
      const data = part
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart())
        .join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
    if (done) return;
  }
}

/** Adds a piece to the message that it belongs to. */
export function grow(message: Message, piece: Piece): void {
  if (piece.content) message.content += piece.content;
  if (piece.reasoning) message.reasoning = (message.reasoning ?? "") + piece.reasoning;
  for (const part of piece.calls ?? []) {
    const calls: Call[] = (message.calls ??= []);
    const call = (calls[part.index] ??= { id: part.id ?? "", name: part.name ?? "", arguments: "" });
    call.arguments += part.arguments ?? "";
  }
  if (piece.speed !== undefined) message.speed = piece.speed;
  if (piece.tokens !== undefined) message.tokens = piece.tokens;
  if (piece.prompt !== undefined) message.prompt = piece.prompt;
}
