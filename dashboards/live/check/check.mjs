// Run by the script check. Prints a line for each finding, and a summary.
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const [installed, work, url, pictures] = process.argv.slice(2);
const require = createRequire(path.join(installed, "package.json"));
const { WebSocket } = require("ws");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const WIDTHS = [375, 768, 1440, 2560];
const SCHEMES = ["light", "dark"];
// Longest time for all checks.
const PATIENCE_MS = 60_000;

const found = [];
const deadline = setTimeout(() => {
  console.error(`not done within ${PATIENCE_MS} ms`);
  browser.kill("SIGKILL");
  process.exit(1);
}, PATIENCE_MS);

const browser = spawn("chromium", [
  "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
  "--disable-default-apps", "--disable-sync", "--remote-debugging-port=0", `--user-data-dir=${path.join(work, "profile")}`, "about:blank",
], { stdio: ["ignore", "ignore", "pipe"] });

// Chromium prints the address of DevTools.
const address = await new Promise((resolve, reject) => {
  let text = "";
  browser.stderr.on("data", (bytes) => {
    text += bytes;
    const match = text.match(/DevTools listening on (ws:\S+)/);
    if (match) resolve(match[1]);
  });
  browser.on("exit", () => reject(new Error(`chromium has ended: ${text}`)));
});

function connect(to) {
  const socket = new WebSocket(to, { perMessageDeflate: false });
  const waiting = new Map();
  const listeners = [];
  let last = 0;
  socket.on("message", (bytes) => {
    const message = JSON.parse(bytes);
    if (message.id === undefined) {
      for (const listener of listeners) listener(message.method, message.params, message.sessionId);
      return;
    }
    const { resolve, reject } = waiting.get(message.id);
    waiting.delete(message.id);
    if (message.error) reject(new Error(message.error.message)); else resolve(message.result);
  });
  const send = (method, params = {}, sessionId = undefined) => new Promise((resolve, reject) => {
    last += 1;
    waiting.set(last, { resolve, reject });
    socket.send(JSON.stringify({ id: last, method, params, sessionId }));
  });
  return new Promise((resolve) => socket.on("open", () => resolve({ send, listen: (own) => listeners.push(own) })));
}

const devtools = await connect(address);
const origin = new URL(url).origin;
let looks = 0;
if (pictures) mkdirSync(pictures, { recursive: true });

async function look(width, scheme) {
  const at = `${width} px, ${scheme}`;
  const { targetId } = await devtools.send("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await devtools.send("Target.attachToTarget", { targetId, flatten: true });
  const send = (method, params) => devtools.send(method, params, sessionId);
  const say = (text) => found.push(`${at}: ${text}`);
  devtools.listen((method, params, own) => {
    if (own !== sessionId) return;
    if (method === "Runtime.consoleAPICalled") say(`console.${params.type}: ${params.args.map((it) => it.value).join(" ")}`);
    if (method === "Runtime.exceptionThrown") say(`exception: ${params.exceptionDetails.exception?.description}`);
    if (method === "Log.entryAdded") say(`log: ${params.entry.text} ${params.entry.url ?? ""}`);
    if (method === "Network.requestWillBeSent" && new URL(params.request.url).origin !== origin) say(`request to ${params.request.url}`);
  });
  for (const domain of ["Page", "Runtime", "Log", "Network"]) await send(`${domain}.enable`);
  await send("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: width < 600 });
  await send("Emulation.setEmulatedMedia", {
    features: [{ name: "prefers-color-scheme", value: scheme }, { name: "prefers-reduced-motion", value: "reduce" }],
  });
  const evaluate = async (expression) => {
    const { result, exceptionDetails } = await send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${at}: ${exceptionDetails.exception?.description}`);
    return result.value;
  };
  await send("Page.navigate", { url });
  // The page is live once a state is shown.
  await evaluate(`new Promise((resolve) => {
    const look = () => document.querySelector("#clock")?.textContent ? resolve() : setTimeout(look, 50);
    look();
  })`);
  const page = await evaluate(`({
    width: document.scrollingElement.scrollWidth, inner: innerWidth,
    functions: document.querySelectorAll("#functions-body tr").length,
    slots: document.querySelectorAll("#slots-body tr").length,
    maps: document.querySelectorAll("#slots-body svg").length,
    moving: [...document.querySelectorAll("*")].filter((it) => parseFloat(getComputedStyle(it).transitionDuration) > 0).length,
  })`);
  if (page.width > page.inner) say(`scrolls sideways: ${page.width} of ${page.inner} px`);
  if (page.functions === 0 || page.slots === 0 || page.maps !== page.slots) say(`rows are missing: ${JSON.stringify(page)}`);
  if (page.moving > 0) say(`${page.moving} elements move although motion is to be reduced`);
  const reached = [];
  for (let press = 0; press < 4; press += 1) {
    for (const type of ["keyDown", "keyUp"]) await send("Input.dispatchKeyEvent", { type, key: "Tab", code: "Tab", windowsVirtualKeyCode: 9 });
    reached.push(await evaluate(`document.activeElement.id || document.activeElement.className || document.activeElement.tagName`));
  }
  for (const wanted of ["skip", "pause", "filter"]) if (!reached.includes(wanted)) say(`the keyboard does not reach ${wanted}: ${reached}`);
  await evaluate(axe);
  const violations = await evaluate(`axe.run(document, { resultTypes: ["violations"] }).then((result) => result.violations.map((it) =>
    ({ id: it.id, impact: it.impact, nodes: it.nodes.slice(0, 3).map((node) => node.target.join(" ") + " " + (node.any[0]?.message ?? "")) })))`);
  for (const own of violations) if (["serious", "critical"].includes(own.impact)) say(`axe: ${own.id} (${own.impact}): ${own.nodes.join("; ")}`);
  if (pictures) {
    const { data } = await send("Page.captureScreenshot", { captureBeyondViewport: true });
    writeFileSync(path.join(pictures, `live-${width}-${scheme}.png`), Buffer.from(data, "base64"));
  }
  await devtools.send("Target.closeTarget", { targetId });
  looks += 1;
}

let failure = null;
try {
  for (const width of WIDTHS) for (const scheme of SCHEMES) await look(width, scheme);
} catch (error) {
  failure = error;
}
clearTimeout(deadline);
const ended = new Promise((resolve) => browser.on("exit", resolve));
browser.kill("SIGKILL");
await ended;
if (failure !== null) {
  console.error(failure.stack);
  process.exit(1);
}
for (const text of found) console.error(text);
console.log(`${url}: looked at ${looks} times, ${found.length} things found`);
process.exit(found.length === 0 ? 0 : 1);
