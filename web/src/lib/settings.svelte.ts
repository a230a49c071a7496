// Settings of this browser. A sampling value that is not set is the server's own.

export interface Settings {
  theme: "system" | "light" | "dark";
  key: string;
  /** The model to ask, where the server has several. */
  model: string;
  system: string;
  tools: string;
  thinking: "model" | "on" | "off";
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  repeat_penalty: number | null;
  seed: number | null;
  max_tokens: number | null;
}

const standard: Settings = {
  theme: "system",
  key: "",
  model: "",
  system: "",
  tools: "",
  thinking: "model",
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  repeat_penalty: null,
  seed: null,
  max_tokens: null,
};

function stored(): Partial<Settings> {
  try {
    return JSON.parse(localStorage.getItem("puna.settings") ?? "{}");
  } catch {
    return {};
  }
}

export const settings: Settings = $state({ ...standard, ...stored() });

export function keep(): void {
  try {
    localStorage.setItem("puna.settings", JSON.stringify(settings));
  } catch {
    // Private windows may not store anything.
  }
}

export function reset(): void {
  const { key, model, theme } = settings;
  Object.assign(settings, standard, { key, model, theme });
}

export const sampling = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens"] as const;
