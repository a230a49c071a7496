// Markdown to safe HTML: code with colours and a button to copy it, and maths.

import { Marked } from "marked";
import createDOMPurify from "dompurify";
import highlighter from "highlight.js/lib/common";
import katex from "katex";
import "katex/dist/katex.min.css";

const purify = createDOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

const escape = (text: string) =>
  text.replace(/[&<>"]/g, (character) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[character]!);

function maths(text: string, block: boolean): string {
  try {
    return katex.renderToString(text, { displayMode: block, throwOnError: false, output: "html", maxExpand: 200 });
  } catch {
    return `<code>${escape(text)}</code>`;
  }
}

const rule = (name: string, level: "block" | "inline", pattern: RegExp, hint: RegExp, block: boolean) => ({
  name,
  level,
  start: (source: string) => source.match(hint)?.index,
  tokenizer(source: string) {
    const match = pattern.exec(source);
    return match ? { type: name, raw: match[0], text: match[1].trim() } : undefined;
  },
  renderer: (token: any) => maths(token.text, block),
});

const marked = new Marked({
  gfm: true,
  breaks: false,
  extensions: [
    rule("blockDollars", "block", /^\$\$([\s\S]+?)\$\$(?:\n|$)/, /\$\$/, true),
    rule("blockBrackets", "block", /^\\\[([\s\S]+?)\\\](?:\n|$)/, /\\\[/, true),
    rule("inlineDollars", "inline", /^\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)/, /\$/, false),
    rule("inlineParentheses", "inline", /^\\\(([\s\S]+?)\\\)/, /\\\(/, false),
  ],
  renderer: {
    code({ text, lang }) {
      const language = (lang ?? "").split(/\s/)[0];
      const known = highlighter.getLanguage(language);
      // Long texts would stop the page while they are coloured again and again.
      const coloured = known && text.length < 50_000 ? highlighter.highlight(text, { language }).value : escape(text);
      const head = `<div class="code-head"><span>${escape(language)}</span><button type="button" class="copy-code">Copy</button></div>`;
      return `<div class="code">${head}<pre><code class="hljs">${coloured}</code></pre></div>`;
    },
  },
});

export function render(text: string): string {
  const html = marked.parse(text, { async: false });
  return purify.sanitize(html, { ADD_ATTR: ["target"], FORBID_TAGS: ["style", "form", "input", "iframe"] });
}
