// The console: what comes from the watchdog, given to the parts of the page that show it; one rendering for each picture.

import { showFleet, listenForFinding } from "./backends.js";
import { askPause, askResume, listenForChanges } from "./change.js";
import { listenForDetails, showDetails } from "./details.js";
import { listenForReleaseAll, showDid } from "./did.js";
import { showNothing, showPolicies, showPromises, showWeights } from "./explain.js";
import { takesWork } from "./facts.js";
import { showWhy } from "./findings.js";
import { ask, askPicture, follow, WITHIN } from "./live.js";
import { $, say } from "./nodes.js";
import { showNow } from "./now.js";
import { listenForReports } from "./report.js";
import { recall, remember } from "./trend.js";
import { clock, count, duration, zone } from "./words.js";

const SECOND_MS = 1000;
const PROMISES_MS = 10_000; // an incident is over in a minute, and what it cost must not read as nothing meanwhile
const BY_HAND_MS = 30_000; // what changes with the configuration or by hand
const LATE_TICKS = 3;
const STEPPED_S = 60; // by as much no picture is late: a watchdog has started whose clock was set back

let latest = null; // { fleet, findings, decisions, at: when it came, by performance.now() }
let lost = false;
let streaming = false;
let recalled = false;

// The watchdog's clock now, as far as it is known here.
const now = () => latest.fleet.now + (performance.now() - latest.at) / 1000;

function warn(text) {
  $("banner").hidden = !text;
  say($("banner"), text);
}

function judge(watchdogsNow) {
  const { time, tick_s } = latest.fleet;
  const late = watchdogsNow - time;
  warn(late > LATE_TICKS * Math.max(1, tick_s) ? `The last tick was ${duration(late)} ago: the watchdog answers, but looks at nothing.` : "");
}

function showClock() {
  const { tick, time } = latest.fleet;
  say($("clock"), `tick ${count(tick)}, ${clock(time)} ${zone()} · ${streaming ? "live" : "asked every 2 s"}`);
}

// Whether it was written before what is shown already. Where only the clock goes back, it was set; where only the ticks do, it is
// another watchdog.
function isLate({ fleet }) {
  const behind = latest ? latest.fleet.now - fleet.now : 0;
  return behind > 0 && behind < STEPPED_S && fleet.tick <= latest.fleet.tick;
}

function show(picture) {
  if (isLate(picture)) return;
  performance.mark("picture");
  latest = { ...picture, at: performance.now() };
  lost = false;
  const { fleet, findings, decisions } = latest;
  judge(fleet.now);
  remember(fleet);
  showClock();
  showNow(fleet, findings);
  showWhy(fleet, findings, fleet.now);
  showDid(fleet, decisions, fleet.now);
  showFleet(fleet, findings);
  showNothing(fleet);
  showDetails(fleet, findings);
  $("pause").hidden = false;
  say($("pause"), fleet.paused ? "Resume…" : "Pause…");
  measured();
  if (!recalled) recallOnce();
}

// For whoever observes how long a rendering takes; nothing is kept of it.
function measured() {
  performance.measure("render", "picture");
  performance.clearMeasures("render");
  performance.clearMarks("picture");
}

async function recallOnce() {
  recalled = true;
  try {
    recall(await ask("/api/v1/trends"), latest.fleet.time);
  } catch {
    return; // lines that begin now are no fault
  }
  showFleet(latest.fleet, latest.findings);
}

function showLost(error) {
  lost = true;
  let what = `The watchdog does not answer (${error.message}).`;
  if (error.answered) what = `The watchdog cannot say: ${error.message}.`;
  else if (error.name === "TimeoutError") what = `The watchdog did not answer ${WITHIN}.`;
  else if (error instanceof TypeError) what = "The watchdog does not answer: it cannot be reached.";
  const since = latest === null ? "" : ` What you see is of ${clock(latest.fleet.time)}. Our changes stay in force until it is back; `
    + "tailkeeper release-all -c FILE undoes them without it.";
  warn(what + since);
  say($("mode"), error.answered ? "not ready" : "no answer", "chip lost");
  document.title = `${error.answered ? "Not ready" : "No answer"} · Tailkeeper`;
}

// How long ago and how long still: what goes on without the watchdog's word.
function showTimes() {
  if (latest === null || lost || document.hidden) return;
  showWhy(latest.fleet, latest.findings, now());
  showDid(latest.fleet, latest.decisions, now());
}

const cannotSay = (id) => (error) => say($(id), `Cannot be told: ${error.message}`);
const SELDOM = [
  { path: "/api/v1/slo", every_ms: PROMISES_MS, show: showPromises, failed: cannotSay("promises-note") },
  { path: "/api/v1/policies", every_ms: BY_HAND_MS, show: showPolicies, failed: cannotSay("policies-note") },
  { path: "/api/v1/hscorer/config", every_ms: BY_HAND_MS, show: showWeights, failed: cannotSay("weights") },
];

listenForChanges({
  state: (name) => latest.fleet.backends.find((b) => b.backend === name && !takesWork(b))?.state,
  after: () => askPicture().then(show, showLost),
});
listenForDetails();
listenForFinding();
listenForReleaseAll();
listenForReports();
$("pause").addEventListener("click", () => (latest.fleet.paused ? askResume() : askPause()));
setInterval(showTimes, SECOND_MS);
follow({
  picture: show,
  beat: (watchdogsNow) => latest && !lost && judge(watchdogsNow),
  lost: showLost,
  way: (is) => { streaming = is; if (latest) showClock(); },
}, SELDOM);
