// Conversations as trees of messages: editing or asking again adds a branch, nothing is lost.

export type Role = "user" | "assistant" | "tool";

export interface Call {
  id: string;
  name: string;
  arguments: string;
}

export interface Attachment {
  name: string;
  kind: "text" | "image";
  /** The text, or a data URL. */
  data: string;
}

export interface Message {
  id: string;
  parent: string | null;
  role: Role;
  content: string;
  reasoning?: string;
  calls?: Call[];
  /** Of a tool's result: the call that it belongs to. */
  call?: string;
  attachments?: Attachment[];
  /** Why there is no (whole) answer. */
  error?: string;
  /** What else is to be said of the answer. */
  note?: string;
  /** Tokens a second, tokens, and tokens of the prompt. */
  speed?: number;
  tokens?: number;
  prompt?: number;
  created: number;
}

export interface Conversation {
  id: string;
  title: string;
  system: string;
  created: number;
  updated: number;
  messages: Record<string, Message>;
  /** The last message of the branch that is shown. */
  leaf: string | null;
}

export const identifier = () => crypto.randomUUID?.() ?? Math.random().toString(36).slice(2) + Date.now().toString(36);

export function create(system: string): Conversation {
  const now = Date.now();
  return { id: identifier(), title: "", system, created: now, updated: now, messages: {}, leaf: null };
}

/** The messages of the branch that ends with `leaf`, first to last. */
export function branch(conversation: Conversation, leaf = conversation.leaf): Message[] {
  const path: Message[] = [];
  for (let id = leaf; id !== null; ) {
    const message: Message | undefined = conversation.messages[id];
    if (!message || path.length > 10_000) break;
    path.push(message);
    id = message.parent;
  }
  return path.reverse();
}

/** Messages that answer the same one, oldest first. */
export function siblings(conversation: Conversation, message: Message): Message[] {
  return Object.values(conversation.messages)
    .filter((other) => other.parent === message.parent)
    .sort((a, b) => a.created - b.created);
}

/** The newest end of the branches that go through a message. */
export function newestLeaf(conversation: Conversation, id: string): string {
  for (;;) {
    const children = Object.values(conversation.messages).filter((message) => message.parent === id);
    if (children.length === 0) return id;
    id = children.reduce((a, b) => (b.created >= a.created ? b : a)).id;
  }
}

export function add(conversation: Conversation, message: Omit<Message, "id" | "created">): Message {
  const whole = { ...message, id: identifier(), created: Date.now() };
  conversation.messages[whole.id] = whole;
  conversation.leaf = whole.id;
  conversation.updated = whole.created;
  return conversation.messages[whole.id];
}

/** Removes a message and everything that follows it. */
export function remove(conversation: Conversation, id: string): void {
  const parent = conversation.messages[id]?.parent ?? null;
  const gone = [id];
  for (let next; (next = gone.pop()) !== undefined; ) {
    for (const message of Object.values(conversation.messages)) if (message.parent === next) gone.push(message.id);
    delete conversation.messages[next];
  }
  conversation.leaf = parent === null ? null : newestLeaf(conversation, parent);
}

/** A title from the first question. */
export function title(text: string): string {
  const line = text.trim().split("\n")[0].trim();
  return line.length > 60 ? line.slice(0, 57) + "…" : line;
}

/** What another program exported, as far as it is a conversation. */
export function parse(value: unknown): Conversation[] {
  const list = Array.isArray(value) ? value : [value];
  return list.filter(
    (item): item is Conversation =>
      typeof item === "object" && item !== null && typeof item.id === "string" && typeof item.messages === "object",
  );
}
