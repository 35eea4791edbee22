// Asks every few seconds, unless paused, hidden or signed out; and says since when nobody answers.

import { ask, Away, post, SignedOut } from "./ask.js";
import { Charts } from "./charts.js";
import { byId, say } from "./dom.js";
import { Explain } from "./explain.js";
import { clock } from "./figures.js";
import { FleetTable } from "./fleet.js";
import { Now } from "./now.js";
import { Tree } from "./tree.js";

const PERIOD_MS = 5000;

const now = new Now();
const charts = new Charts(byId("charts"));
const fleetTable = new FleetTable();
const tree = new Tree(failed);
const explain = new Explain(failed);

let paused = false;
let timer = null;
let asksToken = false;
let answeredS = null;

function fresh(text, tone) {
  say(byId("fresh"), text);
  byId("fresh").className = tone;
}

function showSignIn(is) {
  byId("sign-in").hidden = !is;
  byId("shown").hidden = is;
  byId("pause").hidden = is;
  byId("sign-out").hidden = is || !asksToken;
  if (is) byId("token").focus();
}

function failed(error) {
  if (error instanceof SignedOut) {
    clearTimeout(timer);
    asksToken = true;
    explain.forget();
    showSignIn(true);
    fresh("Signed out", "");
  } else if (error instanceof Away) {
    const since = answeredS === null ? "" : ` since ${clock(answeredS, true)}`;
    fresh(`The router does not answer${since}; asking again`, "bad");
    document.body.classList.add("stale");
  } else {
    fresh(error.message, "bad");
  }
}

async function refresh() {
  clearTimeout(timer);
  try {
    const [fleet, history] = await Promise.all([ask("fleet"), ask("history")]);
    answeredS = Date.now() / 1000;
    document.body.classList.remove("stale");
    if (byId("shown").hidden) showSignIn(false);
    now.show(fleet, history);
    charts.show(history);
    fleetTable.show(fleet.replicas);
    say(byId("fleet-notes"), fleet.notes.join("; "));
    tree.offer(fleet.replicas);
    explain.offer(fleet.replicas);
    fresh(paused ? `Paused at ${clock(answeredS, true)}` : `As of ${clock(answeredS, true)}`, "");
  } catch (error) {
    failed(error);
    if (error instanceof SignedOut) return;
  }
  again();
}

function again() {
  clearTimeout(timer);
  if (!paused && !document.hidden) timer = setTimeout(refresh, PERIOD_MS);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  say(byId("pause"), paused ? "Go on" : "Pause");
  if (paused) {
    clearTimeout(timer);
    fresh(`Paused at ${clock(Date.now() / 1000, true)}`, "");
  } else refresh();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!paused && byId("sign-in").hidden) refresh();
});

byId("sign-in").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const problem = byId("sign-in").querySelector(".problem");
  say(problem, "");
  try {
    await post("session", { token: byId("token").value.trim() });
    byId("token").value = "";
    await start();
    byId("main").focus();
  } catch (error) {
    say(problem, error.message);
  }
});

byId("sign-out").addEventListener("click", async () => {
  try {
    await post("session", {});
    failed(new SignedOut());
  } catch (error) {
    failed(error);
  }
});

async function start() {
  try {
    asksToken = (await ask("session")).asks_token;
  } catch (error) {
    failed(error);
    if (error instanceof SignedOut) return;
  }
  await refresh();
}

start();
