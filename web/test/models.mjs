// Uses the page of a server of several models in a real browser:
//
//     CHROMIUM=/usr/bin/chromium node test/models.mjs http://127.0.0.1:8080 [FOLDER FOR SCREENSHOTS]
//
// The server has at least two models that answer, none of them loaded. Prints a line for each check; the exit code is 1 if
// one fails.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { chromium } from "playwright-core";

const [url, folder = "screenshots"] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1200, height: 800 } });
const faults = [];
page.on("pageerror", (error) => faults.push(String(error)));

const selector = page.getByRole("combobox", { name: "Model" });
const listed = async () => (await (await fetch(`${url}/models`)).json()).data;
const statuses = async () => Object.fromEntries((await listed()).map(({ id, status }) => [id, status.value]));
let names = [];

const checks = {
  async "the page offers the models and loads none"() {
    names = (await listed()).map(({ id }) => id);
    assert.ok(names.length >= 2, String(names));
    await page.goto(url);
    await selector.waitFor();
    const options = await selector.locator("option").allInnerTexts();
    assert.deepEqual(options, names.map((name) => `${name} (unloaded)`));
    assert.deepEqual([...new Set(Object.values(await statuses()))], ["unloaded"]);
    await page.screenshot({ path: `${folder}/models.png` });
  },
  async "the chosen model answers, and no other is loaded"() {
    await selector.selectOption(names[1]);
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByRole("spinbutton", { name: "Most tokens" }).fill("8");
    await page.getByRole("button", { name: "Done" }).click();
    const message = page.getByRole("textbox", { name: "Message" });
    await message.fill("Say hello.");
    await message.press("Enter");
    await page.locator("article.assistant .markdown", { hasText: /\w/ }).waitFor({ timeout: 120_000 });
    await page.locator(".meter").waitFor();
    const found = await statuses();
    assert.deepEqual([found[names[0]], found[names[1]]], ["unloaded", "loaded"]);
    assert.equal((await selector.locator("option").allInnerTexts())[1], names[1]);
  },
  async "the choice stays over a reload"() {
    await page.reload();
    await selector.waitFor();
    assert.equal(await selector.inputValue(), names[1]);
    await page.locator(".meter").waitFor();
  },
  async "nothing went wrong on the page"() {
    assert.deepEqual(faults, []);
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
    await page.screenshot({ path: `${folder}/models-failed-${failed}.png` }).catch(() => {});
  }
}
await browser.close();
console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
