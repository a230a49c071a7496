// Uses the page in a real browser, against a running server:
//
//     CHROMIUM=/usr/bin/chromium node test/page.mjs http://127.0.0.1:8080 [FOLDER FOR SCREENSHOTS]
//
// Prints a line for each check; the exit code is 1 if one fails.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { chromium } from "playwright-core";

const [url, folder = "screenshots"] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, colorScheme: "light" });
const page = await context.newPage();
const faults = [];
page.on("pageerror", (error) => faults.push(String(error)));
page.on("console", (message) => message.type() === "error" && faults.push(message.text()));

const message = page.getByRole("textbox", { name: "Message" });
const answers = page.locator("article.assistant");
const stopped = () => page.getByRole("button", { name: "Send", exact: true }).waitFor({ timeout: 120_000 });

async function say(text) {
  await message.fill(text);
  await message.press("Enter");
  await page.getByRole("button", { name: "Stop" }).waitFor().catch(() => {});
  await stopped();
}

const checks = {
  async "the page meets the server"() {
    await page.goto(url);
    await page.locator(".model").filter({ hasNotText: "no model" }).waitFor();
    await page.screenshot({ path: `${folder}/empty.png` });
  },
  async "an answer comes"() {
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByRole("spinbutton", { name: "Most tokens" }).fill("24");
    await page.getByRole("spinbutton", { name: "Temperature" }).fill("0");
    await page.screenshot({ path: `${folder}/settings.png` });
    await page.getByRole("button", { name: "Done" }).click();
    await say("Say hello.");
    assert.equal(await answers.count(), 1);
    assert.ok((await answers.first().locator(".markdown").innerText()).trim().length > 0);
    assert.match(await answers.first().innerText(), /tokens, [\d.]+ a second/);
    assert.match(await page.locator(".meter").innerText(), /[1-9]\d* \/ /);
    await page.screenshot({ path: `${folder}/answer.png` });
  },
  async "asking again makes a branch, and the old one stays"() {
    await answers.first().hover();
    await answers.first().getByRole("button", { name: "Again" }).click();
    await stopped();
    await page.getByText("2 / 2").waitFor();
    await page.getByRole("button", { name: "Earlier branch" }).click();
    await page.getByText("1 / 2").waitFor();
  },
  async "a question can be edited"() {
    const question = page.locator("article.user").first();
    await question.hover();
    await question.getByRole("button", { name: "Edit" }).click();
    await question.getByRole("textbox", { name: "Edit" }).fill("Say goodbye.");
    await question.getByRole("button", { name: "Send" }).click();
    await stopped();
    assert.match(await page.locator("article.user").first().innerText(), /Say goodbye\./);
  },
  async "conversations stay over a reload"() {
    await page.reload();
    const entry = page.getByRole("navigation").getByRole("button", { name: "Say hello." });
    await entry.click();
    await page.locator("article.user", { hasText: "Say goodbye." }).waitFor();
  },
  async "stopping keeps what came"() {
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByRole("spinbutton", { name: "Most tokens" }).fill("2000");
    await page.getByRole("button", { name: "Done" }).click();
    await message.fill("Count from one to a thousand.");
    await message.press("Enter");
    await page.locator("article.assistant:last-child .markdown", { hasText: /\w/ }).waitFor();
    await page.keyboard.press("Escape");
    await stopped();
    assert.ok((await answers.last().locator(".markdown").innerText()).trim().length > 0);
  },
  async "text files are attached, others are refused"() {
    const picker = page.locator("form input[type=file]");
    await picker.setInputFiles({ name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("a note") });
    await page.getByText("notes.txt").waitFor();
    await page.getByRole("button", { name: "Remove notes.txt" }).click();
    await picker.setInputFiles({ name: "x.bin", mimeType: "application/octet-stream", buffer: Buffer.from([0xff, 0xfe]) });
    await page.getByText("x.bin is not a text file").waitFor();
  },
  async "markdown, code and maths are shown, and scripts are not run"() {
    const content = "# Title\n\n```python\nprint(1)\n```\n\n$x^2$ and <img src=x onerror=\"window.hacked = 1\"><script>window.hacked = 1</script>\n\n|a|b|\n|-|-|\n|1|2|";
    const file = {
      id: "imported", title: "Imported", system: "", created: 1, updated: Date.now() + 1e6, leaf: "b",
      messages: {
        a: { id: "a", parent: null, role: "user", content: "show", created: 1 },
        b: { id: "b", parent: "a", role: "assistant", content, reasoning: "because", created: 2,
          calls: [{ id: "c1", name: "get_weather", arguments: '{"city":"Paris"}' }] },
      },
    };
    await page.locator("nav input[type=file]").setInputFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify([file])) });
    await page.getByRole("navigation").getByRole("button", { name: "Imported" }).click();
    await page.locator(".markdown h1", { hasText: "Title" }).waitFor();
    await page.locator(".code .hljs-built_in, .code .hljs-title").first().waitFor();
    await page.locator(".markdown .katex").first().waitFor();
    await page.locator(".markdown table").waitFor();
    await page.getByText("Thoughts").waitFor();
    await page.getByText("get_weather").waitFor();
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    await page.screenshot({ path: `${folder}/markdown.png` });
  },
  async "a new conversation by the keyboard"() {
    await page.keyboard.press("Control+Shift+O");
    await page.getByText("What shall we talk about?").waitFor();
  },
  async "dark colours"() {
    await page.emulateMedia({ colorScheme: "dark" });
    await page.getByRole("navigation").getByRole("button", { name: "Imported" }).click();
    await page.screenshot({ path: `${folder}/dark.png` });
    const ground = await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    assert.ok(ground.match(/\d+/g).slice(0, 3).every((part) => Number(part) < 60), ground);
  },
  async "a telephone's width"() {
    await page.setViewportSize({ width: 380, height: 720 });
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth > innerWidth), false);
    await page.getByRole("button", { name: "Conversations" }).click();
    await page.getByRole("button", { name: "New conversation" }).click();
    await page.screenshot({ path: `${folder}/telephone.png` });
  },
  async "nothing went wrong on the page"() {
    // The image of the hostile answer is refused by the page's policy or does not exist; that is what it is for.
    const real = faults.filter((fault) => !/Failed to load resource|Content Security Policy|ERR_/.test(fault));
    assert.deepEqual(real, []);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
    await page.screenshot({ path: `${folder}/failed-${failed}.png` }).catch(() => {});
  }
}
await browser.close();
console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
