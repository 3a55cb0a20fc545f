// Everything received from the server is shown as text, never parsed as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const SLACK = ["late", "below 0.1 s", "below 1 s", "below 10 s", "more"];
const STATES = {
  "late": ["late", "bad"], "cold-start": ["cold start", "bad"], "ejected": ["instances ejected", "warn"],
  "detached": ["detached", "warn"], "serving": ["serving", "good"], "idle": ["idle", ""],
};
const CELLS = 60;
const byId = (id) => document.getElementById(id);
const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

// The last received state, and the shown one, which differs while the page is paused.
let latest = null;
let shown = null;
let paused = false;
let lost = false;
let source = null;
let silence = 0;
let lastEvents = "";
// States normally arrive every second.
const SILENCE_MS = 6000;
const RETRY_MS = 3000;
const TIME_MAX = 8.64e15;

function element(name, text, classes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (classes) made.className = classes;
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Rows keep their cells, so that the scroll position and the focus do not change.
function rows(body, items, keyOf, columns, fill) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const kept = new Set();
  let place = body.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let row = known.get(key);
    if (!row || kept.has(row)) {
      row = element("tr");
      row.dataset.key = key;
      row.setAttribute("role", "row");
      for (const [label, classes] of columns) {
        const head = row.childElementCount === 0;
        const cell = element(head ? "th" : "td", undefined, classes);
        cell.setAttribute("role", head ? "rowheader" : "cell");
        if (head) cell.setAttribute("scope", "row"); else cell.dataset.label = label;
        row.append(cell);
      }
    }
    kept.add(row);
    fill(row.children, item);
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
  }
  for (const row of [...body.children]) if (!kept.has(row)) row.remove();
}

function setText(cell, text, classes) {
  if (cell.textContent !== text) cell.textContent = text;
  cell.classList.remove("bad", "warn", "good");
  if (classes) cell.classList.add(classes);
}

function duration(ms) {
  return ms < 1000 ? `${ms} ms` : `${ms / 1000} s`;
}

function inTime(own) {
  if (own.judged === 0) return ["no requests", ""];
  const ratio = own.in_time / own.judged;
  // 100 % is shown only if all requests were in time.
  const percent = own.in_time === own.judged ? "100" : (Math.floor(ratio * 1000) / 10).toFixed(1);
  const target = own.percentile === null ? 0 : own.percentile / 100;
  return [`${percent} % of ${own.judged}`, ratio < target ? "bad" : "good"];
}

function slack(cell, own) {
  const key = own.by_slack.join();
  if (cell.dataset.drawn === key) return;
  cell.dataset.drawn = key;
  cell.replaceChildren(element("span", String(own.waiting)));
  if (own.waiting === 0) return;
  const parts = own.by_slack.map((count, at) => [count, SLACK[at]]).filter(([count]) => count > 0);
  const text = parts.map(([count, name]) => `${count} ${name}`).join(", ");
  cell.append(element("span", ` (${text})`, "of"));
  const bar = shape("svg", { class: "bar", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" });
  let x = 0;
  own.by_slack.forEach((count, at) => {
    const width = 100 * count / own.waiting;
    if (count > 0) bar.append(shape("rect", { class: `s${at}`, x, y: 0, width, height: 4 }));
    x += width;
  });
  cell.append(bar);
}

function functions(state) {
  const wanted = byId("filter").value.trim().toLowerCase();
  const name = (own) => `${own.namespace}/${own.name}`;
  const shown = state.functions.filter((own) => name(own).toLowerCase().includes(wanted));
  const columns = [["Function"], ["State"], ["In time, 5 min"], ["Objective"], ["Waiting, by slack", "wide"], ["Running"], ["Instances"]];
  rows(byId("functions-body"), shown, name, columns, (cells, own) => {
    setText(cells[0], name(own));
    setText(cells[1], ...(STATES[own.state] ?? [own.state, ""]));
    setText(cells[2], ...inTime(own));
    const percentile = own.percentile === null ? "" : `${own.percentile} % within `;
    setText(cells[3], own.objective_ms === null ? "none" : percentile + duration(own.objective_ms));
    slack(cells[4], own);
    setText(cells[5], String(own.running));
    setText(cells[6], own.ejected > 0 ? `${own.ready} ready, ${own.ejected} ejected` : `${own.ready} ready`, own.ejected > 0 ? "warn" : "");
  });
  const more = state.left_out.functions > 0 ? `, and ${state.left_out.functions} more without a need for attention` : "";
  setText(byId("functions-count"), `${shown.length} of ${state.functions.length} shown${more}.`);
}

function map(cell, own) {
  const key = own.busy.join();
  if (cell.dataset.drawn === key) return;
  cell.dataset.drawn = key;
  const svg = shape("svg", { class: "map", viewBox: `0 0 ${CELLS} 3`, preserveAspectRatio: "none", "aria-hidden": "true" });
  own.busy.forEach((percent, at) => {
    const x = CELLS - own.busy.length + at;
    const step = percent === null ? "gone" : `c${percent === 0 ? 0 : Math.min(5, 1 + Math.floor(percent / 20))}`;
    svg.append(shape("rect", { class: step, x: x + 0.06, y: 0.1, width: 0.88, height: 2.8 }));
  });
  cell.replaceChildren(svg);
}

function slots(state) {
  const columns = [["Slot"], ["Last five minutes", "wide"], ["Now"], ["Mean"], ["Tokens"]];
  rows(byId("slots-body"), state.slots, (own) => `${own.node}/${own.slot}`, columns, (cells, own) => {
    const key = `${own.node}/${own.slot} ${own.product} ${own.kind}`;
    if (cells[0].dataset.drawn !== key) {
      cells[0].dataset.drawn = key;
      cells[0].replaceChildren(element("span", `${own.node}/${own.slot}`), element("span", ` ${own.product}, ${own.kind}`, "of"));
    }
    map(cells[1], own);
    const known = own.busy.filter((percent) => percent !== null);
    const last = own.busy[own.busy.length - 1];
    setText(cells[2], own.lost !== null ? `lost: ${own.lost}` : last === undefined || last === null ? "not known yet" : `${last} % busy`, own.lost !== null ? "bad" : "");
    setText(cells[3], known.length === 0 ? "not known yet" : `${Math.round(known.reduce((a, b) => a + b) / known.length)} %`);
    setText(cells[4], `${own.holders} hold, ${own.waiters} wait`);
  });
  const more = state.left_out.slots > 0 ? `${state.left_out.slots} more are not shown.` : "";
  setText(byId("slots-count"), state.slots.length === 0 ? "There are none." : more);
}

function events(state) {
  const key = JSON.stringify(state.events);
  if (key === lastEvents) return;
  lastEvents = key;
  byId("events").replaceChildren(...state.events.map((own) => {
    const line = element("li");
    const at = new Date(Math.min(own.unix_ms, TIME_MAX));
    const clock = element("time", time.format(at));
    clock.dateTime = at.toISOString();
    line.append(clock, " ", element("strong", own.kind), " ", own.about, own.text === "" ? "" : `: ${own.text}`);
    return line;
  }));
  if (state.events.length === 0) byId("events").replaceChildren(element("li", "Nothing has happened.", "none"));
}

function show() {
  if (shown === null) return;
  const notices = byId("notices");
  const texts = shown.notices.join("\n");
  if (notices.dataset.drawn !== texts) {
    notices.dataset.drawn = texts;
    notices.replaceChildren(...shown.notices.map((text) => element("li", text)));
  }
  functions(shown);
  slots(shown);
  events(shown);
}

function connection() {
  const own = byId("connection");
  own.classList.toggle("lost", lost);
  let text = "Connecting";
  if (lost) text = "Connection lost, retrying. Last state of";
  else if (paused) text = "Paused at";
  else if (shown !== null) text = "Live, state of";
  if (own.textContent !== text) own.textContent = text;
  if (shown !== null) byId("clock").textContent = time.format(new Date(Math.min(shown.unix_ms, TIME_MAX)));
}

function advance() {
  if (!paused) shown = latest;
  connection();
  show();
}

function connect() {
  clearTimeout(silence);
  source?.close();
  source = new EventSource("/live/stream");
  source.onmessage = (message) => {
    watch();
    lost = false;
    latest = JSON.parse(message.data);
    advance();
  };
  // After a refusal the browser does not retry by itself.
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) return;
    lost = true;
    connection();
    again(RETRY_MS);
  };
  watch();
}

// A connection may fail silently.
function watch() {
  again(SILENCE_MS, () => {
    lost = true;
    connection();
  });
}

function again(ms, before = () => {}) {
  clearTimeout(silence);
  silence = setTimeout(() => {
    before();
    connect();
  }, ms);
}

byId("filter").addEventListener("input", show);
byId("pause").addEventListener("click", (event) => {
  paused = !paused;
  event.target.setAttribute("aria-pressed", String(paused));
  advance();
});
connect();
