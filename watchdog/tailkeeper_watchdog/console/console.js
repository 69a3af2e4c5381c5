// The console: asks the watchdog's own API every two seconds and writes what it says. Everything is set as text,
// never as markup, because names and reasons come from engines and people. Nodes are kept and changed in place, so
// that nothing jumps under the reader's eye, finger or keyboard. A token lives in this page's memory and nowhere else.
"use strict";

const PERIOD_MS = 2000;
const DEADLINE_MS = 8000;
const POLICIES_EVERY = 15; // periods; what changes with the configuration or by hand; a multiple of the next
const PROMISES_EVERY = 5; // an incident is over in a minute, and what it cost must not read as nothing meanwhile
const SPARK_POINTS = 150; // five minutes
const ENOUGH = 20; // requests behind a P99 worth a sentence
const SURE = 0.8; // confidence from which a score needs no word about it: engines often do not tell their CPU
const MAX_ROWS = 60; // backends shown at once
const MAX_CARDS = 30;
const MAX_LINES = 20;

const history = new Map(); // P99 by backend, null where not known
let token = null;
let answered = null; // when the watchdog last answered, by this browser's clock
let round = 0;
let remembered = 0;
let latest = null;

const $ = (id) => document.getElementById(id);

// Words and numbers

const unknown = (value) => value === null || value === undefined;
const three = (value) => (value === 0 ? "0" : Number(value.toPrecision(3)).toString());
const percent = (value) => (unknown(value) ? "–" : `${three(value * 100)}\u00a0%`);
const share = (value) => `${Math.round(value * 100)}\u00a0%`;
const width = (ratio) => `${Math.round(100 * Math.min(1, Math.max(0, ratio || 0)))}%`;
const factor = (name) => name.replaceAll("_", " ");
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function seconds(value) {
  if (unknown(value)) return "–";
  return value < 1 ? `${three(value * 1000)}\u00a0ms` : `${three(value)}\u00a0s`;
}

function clock(unix, withSeconds = true) {
  const at = new Date(unix * 1000);
  const shape = { hour: "2-digit", minute: "2-digit", hour12: false, ...(withSeconds ? { second: "2-digit" } : {}) };
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("en-CA")} `;
  return day + at.toLocaleTimeString("en-GB", shape);
}

function duration(value) {
  const rest = Math.max(0, Math.round(value));
  if (rest < 60) return `${rest} s`;
  if (rest < 3600) return `${Math.floor(rest / 60)} min ${rest % 60} s`;
  return `${Math.floor(rest / 3600)} h ${Math.floor((rest % 3600) / 60)} min`;
}

function some(names, most = 3) {
  const more = names.length - most;
  return more > 0 ? `${names.slice(0, most).join(", ")} and ${more.toLocaleString("en")} more` : names.join(", ");
}

function turned(knob, value) {
  if (knob === "admission") return value === "drain" ? "drained" : value === "serve" ? "admitted" : String(value);
  if (knob === "weight" && typeof value === "number") return `weight ${percent(value)}`;
  return `${knob.replaceAll("_", " ")} ${typeof value === "number" ? three(value) : value}`;
}

// Nodes

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (!unknown(text)) node.textContent = text;
  return node;
}

function say(node, text, className) {
  if (node.textContent !== text) node.textContent = text;
  if (className !== undefined && node.className !== className) node.className = className;
}

// One child of `parent` per item, in order; a child whose key is still there is kept.
function keyed(parent, items, keyOf, make, fill) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  items.forEach((item, at) => {
    const key = keyOf(item);
    let node = known.get(key);
    known.delete(key);
    if (!node) {
      node = make(item);
      node.dataset.key = key;
    }
    fill(node, item);
    if (parent.children[at] !== node) parent.insertBefore(node, parent.children[at] || null);
  });
  for (const node of known.values()) node.remove();
}

function rest(node, count) {
  say(node, count > MAX_CARDS ? `and ${(count - MAX_CARDS).toLocaleString("en")} more` : "");
}

const lines = (parent, texts) => keyed(parent, texts, (text) => text, (text) => element("li", null, text), () => {});

// Now

const isDrained = (b) => b.actual.admission === "drain" || b.actual.weight === 0;
const takesWork = (b) => b.state === "serving" || b.state === "busy";
const isDead = (b) => b.state === "hung" || b.state === "down";
const leasesOf = (fleet) => fleet.backends.flatMap((b) => b.leases.map((lease) => ({ ...lease, backend: b.backend })));

function users(fleet, findings) {
  const measured = fleet.backends.filter((b) => b.p99_s !== null && !isDrained(b));
  const sure = measured.filter((b) => b.samples >= ENOUGH);
  if (!sure.length) {
    const most = Math.max(0, ...measured.map((b) => b.samples));
    return most ? `Too few requests for a P99 (n\u00a0=\u00a0${most}).` : "No traffic is seen.";
  }
  const worst = sure.reduce((a, b) => (b.p99_s > a.p99_s ? b : a));
  const n = `n\u00a0=\u00a0${worst.samples.toLocaleString("en")}`;
  const wait = `${worst.p99_saturated ? "at least " : ""}${seconds(worst.p99_s)}`;
  const slo = fleet.slo_ttft_p99_s;
  if (worst.p99_s <= slo && !worst.p99_saturated) {
    return `Users wait at most ${wait} for the first token at P99 (${worst.backend}, ${n}), within the SLO of ${seconds(slo)}.`;
  }
  const since = findings.filter((f) => f.backend === worst.backend && f.severity !== "info").map((f) => f.since);
  return `Users of ${worst.model || worst.backend} wait ${wait} for the first token at P99 (${worst.backend}, ${n}), `
    + `SLO ${seconds(slo)}${since.length ? `, since ${clock(Math.min(...since), false)}` : ""}.`;
}

function dead(fleet) {
  const ill = fleet.backends.filter(isDead);
  const out = ill.filter(isDrained).map((b) => b.backend);
  const inside = ill.filter((b) => !isDrained(b)).map((b) => b.backend);
  const is = (names) => `${some(names)} ${names.length === 1 ? "does not answer and" : "do not answer and"}`;
  return [
    out.length ? `${is(out)} ${out.length === 1 ? "gets" : "get"} no new requests.` : "",
    inside.length ? `${is(inside)} still ${inside.length === 1 ? "gets" : "get"} requests.` : "",
  ].filter(Boolean).join(" ");
}

function sentence(fleet, findings) {
  const all = fleet.backends.length;
  const able = fleet.backends.filter(takesWork).length;
  const serving = able === all ? `All ${plural(all, "backend")} serving.` : `${able} of ${plural(all, "backend")} serving.`;
  return [serving, users(fleet, findings), dead(fleet)].filter(Boolean).join(" ");
}

function troubles(fleet) {
  const found = [];
  if (fleet.error) found.push(`Nothing new is known: ${fleet.error}`);
  for (const [name, error] of Object.entries(fleet.gateway_errors)) found.push(`Gateway ${name} does not answer: ${error}`);
  for (const b of fleet.backends) if (b.actual.doubt) found.push(`${b.backend}: ${b.actual.doubt}`);
  return found.slice(0, MAX_LINES);
}

const STATES = ["serving", "busy", "starting", "hung", "down", "misconfigured", "unknown"];

function showNow(fleet, findings) {
  say($("now"), sentence(fleet, findings));
  const counts = STATES.map((state) => [state, fleet.backends.filter((b) => b.state === state).length]).filter(([, n]) => n);
  keyed($("states"), counts, ([state]) => state, ([state]) => element("li", `state ${state}`),
    (node, [state, n]) => say(node, `${n.toLocaleString("en")} ${state}`));
  lines($("trouble"), troubles(fleet));
  say($("mode"), fleet.paused ? `paused: ${fleet.paused_because}` : `mode ${fleet.mode}`, `chip ${fleet.paused ? "paused" : fleet.mode}`);
  say($("clock"), `tick ${fleet.tick.toLocaleString("en")}, ${clock(fleet.time)}`);
  const able = fleet.backends.filter(takesWork).length;
  document.title = `${able} of ${fleet.backends.length} serving · Tailkeeper`;
}

// Why

const RANK = { page: 0, ticket: 1, info: 2 };

function makeCard() {
  const card = element("div");
  card.parts = { summary: element("p"), facts: element("p", "quiet"), severity: element("span", "severity"), rest: element("span"), shares: element("div") };
  card.parts.facts.append(card.parts.severity, card.parts.rest);
  card.append(card.parts.facts, card.parts.summary, card.parts.shares);
  return card;
}

function fillCard(card, finding, now) {
  say(card.parts.summary, finding.summary);
  say(card.parts.severity, finding.severity);
  const lost = finding.evidence.telemetry_lost ? ", telemetry lost since: stays open until there is evidence" : "";
  say(card.parts.rest, ` · ${finding.kind.replaceAll("_", " ")} · since ${clock(finding.since)} (${duration(now - finding.since)})${lost}`);
  if (card.className !== `card ${finding.severity}`) card.className = `card ${finding.severity}`;
  keyed(card.parts.shares, finding.shares, (s) => `${s.dimension} ${s.value}`, makeShare, fillShare);
}

function makeShare(s) {
  const line = element("p", "share");
  const meter = element("span", "meter");
  line.parts = { fill: element("i"), number: element("span") };
  meter.append(line.parts.fill);
  line.append(element("span", null, s.dimension === "unknown" ? "not explained" : `${s.dimension} ${s.value}`), meter, line.parts.number);
  return line;
}

function fillShare(line, s) {
  line.parts.fill.style.width = width(s.share);
  say(line.parts.number, unknown(s.share) ? "–" : share(s.share));
  line.title = unknown(s.confidence) ? "" : `confidence ${share(s.confidence)}`;
}

const isOver = (b, slo) => b.p99_s !== null && b.samples >= ENOUGH && !isDrained(b) && (b.p99_s > slo || b.p99_saturated);

// What to say where no finding is open. Quiet must be earned: no finding is not yet good.
function calm(fleet) {
  const over = fleet.backends.filter((b) => isOver(b, fleet.slo_ttft_p99_s)).map((b) => b.backend);
  const out = fleet.backends.filter((b) => !takesWork(b)).map((b) => b.backend);
  if (over.length) return [`No open finding explains why ${some(over)} ${over.length === 1 ? "is" : "are"} over the SLO.`, "quiet"];
  if (out.length) return [`No open findings; ${some(out)} ${out.length === 1 ? "is" : "are"} not serving.`, "quiet"];
  return ["All quiet: nothing is wrong that the watchdog can see.", "all-quiet"];
}

function showWhy(fleet, findings) {
  const sorted = [...findings].sort((a, b) => RANK[a.severity] - RANK[b.severity] || b.since - a.since);
  say($("findings-count"), findings.length ? plural(findings.length, "open finding") : "");
  $("findings").hidden = !findings.length;
  $("quiet").hidden = Boolean(findings.length);
  say($("quiet"), ...calm(fleet));
  keyed($("findings"), sorted.slice(0, MAX_CARDS), (f) => f.id, makeCard, (card, f) => fillCard(card, f, fleet.now));
  rest($("findings-more"), findings.length);
}

// What we did

function makeLease(group) {
  const item = element("li");
  const head = element("div", "head");
  item.parts = { what: element("span", "verdict applied"), until: element("p", "quiet"), reason: element("p", "quiet") };
  const button = element("button", null, "Release…");
  button.type = "button";
  button.setAttribute("aria-label", `Release ${group.backend}`);
  button.addEventListener("click", () => openRelease(group.backend));
  head.append(item.parts.what, button);
  item.append(head, item.parts.until, item.parts.reason);
  return item;
}

function fillLease(item, group, now) {
  const what = [...new Set(group.leases.map((l) => turned(l.knob, l.written)))].join(", "); // one thing at two gateways is said once
  say(item.parts.what, `${group.backend}: ${what}`);
  const places = [...new Set(group.leases.map((l) => l.gateway))].join(", ");
  const unsure = group.leases.every((l) => l.confirmed) ? "" : " · not read back yet";
  const ends = Math.min(...group.leases.map((l) => l.expires));
  say(item.parts.until, `at ${places} since ${clock(group.leases[0].since)} · lease ends in ${duration(ends - now)} unless still needed${unsure}`);
  say(item.parts.reason, [...new Set(group.leases.map((l) => l.reason))].join("; "));
}

function showDid(fleet, decisions) {
  const groups = fleet.backends.filter((b) => b.leases.length);
  say($("leases-count"), groups.length ? `${plural(groups.length, "backend")} changed now` : "nothing of ours is in force");
  keyed($("leases"), groups.slice(0, MAX_CARDS), (b) => b.backend, makeLease, (item, b) => fillLease(item, b, fleet.now));
  rest($("leases-more"), groups.length);
  const rows = decisions.length ? decisions : [null];
  keyed($("decisions"), rows, (d) => (d ? String(d.id) : "none"), makeDecision, () => {});
}

function makeDecision(d) {
  if (!d) return element("li", "quiet", "No decisions yet.");
  const item = element("li");
  const head = element("p");
  head.append(element("span", "quiet", `${clock(d.time)} `), element("span", `verdict ${d.verdict}`, d.verdict),
    document.createTextNode(` ${d.backend}: ${turned(d.knob, d.to)}`));
  item.append(head, element("p", "quiet", d.reason));
  return item;
}

// Releasing

let releasing = null;

function openRelease(backend) {
  releasing = backend;
  const row = latest && latest.backends.find((b) => b.backend === backend);
  const state = row && !takesWork(row) ? ` It is ${row.state} now: requests sent to it may get no answer.` : "";
  say($("release-title"), `Release ${backend}?`);
  say($("release-text"), `Everything we changed goes back to what it was before.${state} The watchdog may act again after its cool-down; `
    + "pause it, or hold the backend, to keep it from doing so.");
  say($("release-error"), "");
  $("token-label").hidden = true;
  $("release").showModal();
}

async function release(event) {
  event.preventDefault();
  const submit = $("release-form").querySelector("button[type=submit]");
  if (!$("token-label").hidden) token = $("token").value;
  submit.disabled = true;
  try {
    const answer = await fetch("/api/v1/release", {
      method: "POST", cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS), body: JSON.stringify({ backend: releasing }),
      headers: { "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) },
    });
    const document_ = await answer.json();
    if (answer.status === 401) askToken();
    else if (!answer.ok) say($("release-error"), `Not released: ${detail(document_)}`);
    else released(document_);
  } catch (error) {
    say($("release-error"), `Not released: ${error.message}`);
  } finally {
    submit.disabled = false;
  }
  refresh();
}

function askToken() {
  const first = $("token-label").hidden;
  say($("release-error"), first ? "The watchdog asks for its token." : "This token is not accepted.");
  token = null;
  $("token").value = "";
  $("token-label").hidden = false;
  $("token").focus();
}

function detail(answer) {
  if (typeof answer.detail === "string") return answer.detail;
  return (answer.detail || []).map((d) => `${d.loc.join(".")}: ${d.msg}`).join("; ");
}

function released(answer) {
  if (answer.failed) {
    say($("release-error"), `Not everything was released: ${plural(answer.failed, "change")} still in force. See the decisions.`);
    return;
  }
  $("token").value = "";
  $("release").close();
  say($("told"), `${releasing} was released at ${clock(Date.now() / 1000)}.`);
}

// Backends

const CELLS = ["Backend", "State", "HScore", "P99 first token", "Last 5 min", "Queue", "KV", "GPU", "Weight now", "Why"];

function makeRow() {
  const tr = element("tr");
  tr.setAttribute("role", "row");
  const classes = ["name", "", "score number", "number", "", "number", "number", "number", "number", "wide"];
  tr.parts = CELLS.map((label, i) => {
    const cell = element("td", classes[i]);
    cell.dataset.label = label;
    cell.setAttribute("role", "cell");
    const box = element("div");
    cell.append(box);
    tr.append(cell);
    return { main: box.appendChild(element("span")), note: box.appendChild(element("div", "quiet")), box };
  });
  const meter = element("span", "meter");
  tr.fillBar = meter.appendChild(element("i"));
  tr.meter = meter;
  tr.parts[2].box.prepend(meter);
  tr.spark = makeSpark();
  tr.parts[4].box.replaceChildren(tr.spark.svg);
  return tr;
}

function put(part, main, note = "", className = "") {
  say(part.main, main, className);
  say(part.note, note);
  part.note.hidden = !note;
}

function fillRow(tr, b, fleet) {
  const [name, state, score, p99, , queue, kv, gpu, weight, why] = tr.parts;
  put(name, b.backend, b.model);
  // Evidence becomes stale after three intervals; from two on its age is shown.
  const old = b.age_s !== null && b.age_s > fleet.stale_after_s * 2 / 3;
  put(state, b.state, old ? `${seconds(b.age_s)} old` : "", `state ${b.state}`);
  tr.meter.hidden = b.hscore === null;
  tr.fillBar.style.width = width(b.hscore);
  put(score, b.hscore === null ? "unknown" : b.hscore.toFixed(2), b.hscore === null ? "" : scoreNote(b));
  fillP99(p99, b, fleet.slo_ttft_p99_s);
  fillSpark(tr.spark, b.backend, fleet.slo_ttft_p99_s);
  put(queue, unknown(b.waiting) ? "–" : `${three(b.waiting)} waiting`, unknown(b.running) ? "" : `${three(b.running)} running`);
  put(kv, percent(b.kv_usage_ratio));
  put(gpu, percent(b.gpu_utilization_ratio));
  put(weight, inForce(b), wish(b));
  put(why, b.hold ? `held until ${clock(b.hold.until)}: ${b.hold.reason}` : b.why);
}

// What costs most, and how much the score rests on where that is not all of it.
function scoreNote(b) {
  const costs = b.hscore < 1 ? factor(b.dominant_factor || "") : "";
  const sure = b.confidence < SURE ? `${share(b.confidence)} known` : "";
  return [costs, sure].filter(Boolean).join(", ");
}

function showWeights(config) {
  const parts = Object.entries(config.weights).map(([name, weight]) => `${factor(name)} ${percent(weight)}`);
  const [last] = config.history;
  say($("weights"), `HScore weighs ${parts.join(", ")}. ${last ? `Changed ${clock(last.time)} by ${last.by}.` : ""}`);
}

function fillP99(part, b, slo) {
  if (b.p99_s === null) return put(part, b.state === "unknown" ? "unknown" : "no traffic");
  const over = b.p99_s > slo || b.p99_saturated;
  const few = b.samples < ENOUGH;
  return put(part, `${b.p99_saturated ? "≥ " : ""}${seconds(b.p99_s)}`,
    `${few ? "too few, " : ""}n\u00a0=\u00a0${b.samples.toLocaleString("en")}${over ? `, SLO ${seconds(slo)}` : ""}`, over && !few ? "over" : "");
}

function inForce(b) {
  if (b.actual.admission === "drain") return "drained";
  return unknown(b.actual.weight) ? "unknown" : percent(b.actual.weight);
}

// What the policies want where it is not what is in force.
function wish(b) {
  if (b.desired.admission === "drain") return b.actual.admission === "drain" ? "" : "wanted: drained";
  const wanted = b.desired.weight;
  if (unknown(wanted) || unknown(b.actual.weight) || Math.abs(wanted - b.actual.weight) <= 0.02) return "";
  return wanted < b.actual.weight ? `wanted: ${percent(wanted)}` : `returning to ${percent(wanted)}`;
}

function makeSpark() {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 100 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const slo = svg.appendChild(document.createElementNS(space, "line"));
  slo.setAttribute("x1", "0");
  slo.setAttribute("x2", "100");
  return { svg, slo, space };
}

function fillSpark(spark, name, slo) {
  const points = history.get(name) || [];
  spark.svg.setAttribute("aria-label", `P99 of ${name} over the last five minutes against the SLO`);
  const top = Math.max(slo * 1.4, ...points.filter((p) => p !== null));
  const y = (value) => (19 - 18 * value / top).toFixed(1);
  spark.slo.setAttribute("y1", y(slo));
  spark.slo.setAttribute("y2", y(slo));
  const first = SPARK_POINTS - points.length; // the newest is at the right
  const runs = [[]];
  points.forEach((p, i) => (p === null ? runs.push([]) : runs.at(-1).push(`${(100 * (first + i) / (SPARK_POINTS - 1)).toFixed(1)},${y(p)}`)));
  const drawn = runs.filter((run) => run.length > 1);
  const old = [...spark.svg.querySelectorAll("polyline")];
  drawn.forEach((run, i) => {
    const poly = old[i] || spark.svg.appendChild(document.createElementNS(spark.space, "polyline"));
    poly.setAttribute("points", run.join(" "));
  });
  for (const poly of old.slice(drawn.length)) poly.remove();
}

function remember(fleet) {
  if (Date.now() - remembered < PERIOD_MS / 2) return; // asked in between, after a release
  remembered = Date.now();
  const names = new Set(fleet.backends.map((b) => b.backend));
  for (const name of history.keys()) if (!names.has(name)) history.delete(name);
  for (const b of fleet.backends) {
    const points = history.get(b.backend) || [];
    points.push(b.p99_s);
    if (points.length > SPARK_POINTS) points.shift();
    history.set(b.backend, points);
  }
}

// What the watchdog saw before this page was opened.
async function recall() {
  const before = await ask("/api/v1/trends");
  for (const [name, points] of Object.entries(before.p99_s)) history.set(name, points.slice(-SPARK_POINTS));
}

const isPlain = (b) => b.state === "serving" && !b.leases.length && !wish(b) && !b.hold;

function showBackends(fleet) {
  const many = fleet.backends.length > MAX_ROWS;
  const text = $("filter").value.trim().toLowerCase();
  $("find").hidden = !many;
  const found = text ? fleet.backends.filter((b) => `${b.backend} ${b.model} ${b.state}`.toLowerCase().includes(text)) : fleet.backends;
  // A fleet that fits keeps its order; of a larger one those that need attention come first.
  const ordered = many ? [...found.filter((b) => !isPlain(b)), ...found.filter(isPlain)] : found;
  const rows = ordered.slice(0, MAX_ROWS);
  say($("shown"), rows.length < fleet.backends.length
    ? `${rows.length} of ${fleet.backends.length.toLocaleString("en")} shown, those that need attention first` : "");
  keyed($("backends"), rows, (b) => b.backend, makeRow, (tr, b) => fillRow(tr, b, fleet));
}

// Why nothing happened, and what could

function unmet(b) {
  return !b.leases.length && (wish(b).startsWith("wanted") || b.state === "unknown" || b.state === "misconfigured");
}

function showNothing(fleet) {
  const said = [];
  if (fleet.paused) said.push(`Paused (${fleet.paused_because}): what is found is told, nothing is changed. POST /api/v1/resume ends it.`);
  if (fleet.mode === "observe") said.push("No policy is in mode enforce: what would be done is written down, nothing is changed.");
  if (fleet.mode === "advise") said.push("Policies advise only: what would be done is notified, nothing is changed.");
  for (const b of fleet.backends) if (b.hold) said.push(`${b.backend} is held by an operator until ${clock(b.hold.until)}: ${b.hold.reason}`);
  for (const b of fleet.backends) if (unmet(b)) said.push(`${b.backend}: ${b.why}`);
  // In part: a guard let less through than was wanted, and the row has both numbers and why.
  for (const b of fleet.backends) if (b.leases.length && wish(b).startsWith("wanted")) said.push(`${b.backend}: only in part, ${wish(b)}. Its row says why.`);
  if (!said.length) said.push(leasesOf(fleet).length ? "All that was wanted is done and read back." : "Nothing was wanted: no policy asks for a change.");
  const more = said.length - MAX_LINES;
  lines($("nothing"), more > 0 ? [...said.slice(0, MAX_LINES), `and ${more.toLocaleString("en")} more; see the backends`] : said);
}

const REACH = { enforced: "enforced", observed: "observed", not_enforceable: "not enforceable" };

// A policy at a backend; where it goes in part, each of its knobs.
function cellsOf(policy, backend) {
  const name = policy.policy.replaceAll("_", " ");
  const knobs = Object.entries(backend.knobs);
  if (new Set(knobs.map(([, knob]) => knob.actuation)).size < 2) return [{ ...backend, name }];
  return knobs.map(([knob, reach]) => ({ ...reach, name: `${name}: ${knob.replaceAll("_", " ")}` }));
}

// Policies of which the same is true of the same backends share a row.
function policyRows(policies) {
  const rows = new Map();
  for (const policy of policies) {
    const reaches = new Map();
    for (const backend of policy.backends) {
      for (const cell of cellsOf(policy, backend)) {
        const because = cell.why || policy.summary;
        const reach = `${cell.actuation}|${because}|${cell.name}`;
        if (!reaches.has(reach)) reaches.set(reach, { cell, because, backends: [] });
        reaches.get(reach).backends.push(backend.backend);
      }
    }
    for (const row of reaches.values()) {
      const where = row.backends.length === policy.backends.length ? "all" : some(row.backends);
      const key = `${row.cell.actuation}|${row.because}|${where}`;
      if (!rows.has(key)) rows.set(key, { key, ...row, where, names: [] });
      rows.get(key).names.push(row.cell.name);
    }
  }
  return [...rows.values()];
}

function makeCells(labels, classes) {
  const tr = element("tr");
  tr.setAttribute("role", "row");
  tr.parts = labels.map((label, i) => {
    const cell = tr.appendChild(element("td", classes[i]));
    cell.dataset.label = label;
    cell.setAttribute("role", "cell");
    return cell.appendChild(element("span"));
  });
  return tr;
}

const makePolicyRow = () => makeCells(["Policy", "Here", "Backends", "Because"], ["policy", "number", "", "wide"]);
const REACHES = Object.keys(REACH);

function showPolicies(policies) {
  const tell = (row) => [row.names.join(", "), REACH[row.cell.actuation] || row.cell.actuation, row.where, row.because];
  const order = (row) => REACHES.indexOf(row.cell.actuation);
  const rows = policyRows(policies).sort((a, b) => order(a) - order(b)); // what acts first
  keyed($("policies"), rows, (row) => row.key, makePolicyRow,
    (tr, row) => tell(row).forEach((text, i) => say(tr.parts[i], text)));
}

// Promises

const PROMISE_COLUMNS = ["Tier", "First output within", "Last hour", "Last day", "30 days", "Error budget left, 30 days"];
const makePromiseRow = () => makeCells(PROMISE_COLUMNS, ["policy", "number", "number", "number", "number", "number"]);

// Down, and one digit more than the objective has: 99.96 % must not read as 100 %.
const kept = (w) => (unknown(w.compliance) ? "no requests"
  : `${(Math.floor(w.compliance * 1e4) / 100).toFixed(2)}\u00a0% (n\u00a0=\u00a0${Math.round(w.requests).toLocaleString("en")})`);

function budget(w) {
  if (unknown(w.budget_left)) return "–";
  return w.budget_used > 1 ? `overspent ${three(w.budget_used)} times` : share(w.budget_left);
}

const WINDOWS = { "1h": "the last hour", "1d": "the last day", "30d": "30 days" };
const covered = (ratio) => (ratio > 0 && ratio < 0.01 ? "under 1\u00a0%" : share(ratio));

// Built-in tiers that nobody asked for say nothing.
function showPromises(slo) {
  const asked = (tier) => !tier.tier.startsWith("default-") || tier.windows.some((w) => w.requests > 0);
  const seen = Object.entries(slo.coverage).map(([name, ratio]) => `${covered(ratio)} of ${WINDOWS[name] || name}`).join(", ");
  say($("promises-note"), `Goal ${percent(slo.objective)}; seen ${seen}; ${slo.note}.`);
  const tell = (tier) => [tier.tier, seconds(tier.limit_s), ...tier.windows.map(kept), budget(tier.windows.at(-1))];
  keyed($("promises"), slo.tiers.filter(asked), (tier) => tier.tier, makePromiseRow,
    (tr, tier) => tell(tier).forEach((text, i) => say(tr.parts[i], text)));
}

// Asking

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS) });
  if (answer.ok) return answer.json();
  const said = detail(await answer.json().catch(() => ({}))) || `${path} answered ${answer.status}`;
  throw Object.assign(new Error(said), { answered: true });
}

function warn(text) {
  $("banner").hidden = !text;
  say($("banner"), text);
}

function lost(error) {
  let what = `The watchdog does not answer (${error.message}).`;
  if (error.answered) what = `The watchdog cannot say: ${error.message}.`;
  else if (error.name === "TimeoutError") what = `The watchdog did not answer within ${DEADLINE_MS / 1000} s.`;
  else if (error instanceof TypeError) what = "The watchdog does not answer: it cannot be reached.";
  const since = answered === null ? "" : ` What you see is of ${clock(answered / 1000)}. Our changes stay in force until it is back; `
    + "tailkeeper release-all -c FILE undoes them without it.";
  warn(what + since);
  say($("mode"), error.answered ? "not ready" : "no answer", "chip lost");
  document.title = `${error.answered ? "Not ready" : "No answer"} · Tailkeeper`;
}

function show(fleet, findings, decisions) {
  latest = fleet;
  const late = fleet.now - fleet.time;
  warn(late > 3 * Math.max(1, fleet.tick_s) ? `The last tick was ${duration(late)} ago: the watchdog answers, but looks at nothing.` : "");
  remember(fleet);
  showNow(fleet, findings);
  showWhy(fleet, findings);
  showDid(fleet, decisions);
  showBackends(fleet);
  showNothing(fleet);
}

async function refresh() {
  try {
    const wanted = ["/api/v1/fleet", "/api/v1/findings?open=true", "/api/v1/decisions?limit=50"];
    if (round % PROMISES_EVERY === 0) wanted.push("/api/v1/slo");
    if (round % POLICIES_EVERY === 0) wanted.push("/api/v1/policies", "/api/v1/hscorer/config");
    if (round === 0) await recall();
    const [fleet, findings, decisions, slo, policies, weights] = await Promise.all(wanted.map(ask));
    answered = Date.now();
    round += 1;
    show(fleet, findings, decisions);
    if (policies) showPolicies(policies);
    if (weights) showWeights(weights);
    if (slo) showPromises(slo);
  } catch (error) {
    lost(error);
  }
}

async function follow() {
  await refresh();
  setTimeout(follow, PERIOD_MS);
}

$("filter").addEventListener("input", () => latest && showBackends(latest));
$("release-form").addEventListener("submit", release);
$("release-cancel").addEventListener("click", () => $("release").close());
$("release").addEventListener("close", () => { $("token").value = ""; });
follow();
