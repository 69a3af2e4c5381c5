// The viewer of replay reports: a file that is picked or dropped is read in this page and shown; it is sent nowhere.

import { $, element, keyed, lines, makeRow, makeTable, say } from "./nodes.js";
import { makePager } from "./pager.js";
import { readReport } from "./report_file.js";
import { clock, count, duration, percent, plural, seconds, signal, spoken, turned, unknown, zone } from "./words.js";

const MAX_LINES = 40;
const MAX_DIFFERENCE_CHARS = 300; // both findings whole, one after the other, are for machines
const MAX_MARKS = 200; // of each kind in one strip of time
const SPACE = "http://www.w3.org/2000/svg";

const whole = (value) => (unknown(value) ? "–" : count(Math.round(value)));
const when = (at) => (unknown(at) ? "–" : clock(at));
const KEPT = new Map([[true, "kept"], [false, "broken"], [null, "unknown"]]);
const GRAVITY = ["page", "ticket", "info"];
const grave = (f) => (GRAVITY.includes(f.severity) ? GRAVITY.indexOf(f.severity) : GRAVITY.length);

const TABLES = [
  {
    id: "backends", title: "Did users get what was promised?", none: "No backend.",
    labels: ["Backend", "Promise", "When", "Requests", "Failed", "Late first tokens", "Time over SLO", "Worst P99", "Seen"],
    classes: ["name", "", "", "number", "number", "number", "number", "number", ""],
    rows: (report) => report.backends.map((b) => ({ ...b, strip: stripOf(b, report) })).sort((a, b) => rank(a) - rank(b)),
    fill: fillBackend,
  },
  {
    id: "findings", title: "What was found", none: "Nothing.",
    labels: ["Since", "Severity", "Kind", "Finding", "Lasted", "Users felt it"],
    classes: ["name", "", "", "wide", "number", ""],
    rows: (report) => [...report.findings].sort((a, b) => grave(a) - grave(b) || a.since - b.since),
    fill: fillFinding,
  },
  {
    id: "decisions", title: "What was decided", none: "Nothing.",
    labels: ["Time", "Verdict", "Backend", "What", "Reason"], classes: ["name", "", "", "what", "wide"],
    rows: (report) => report.decisions, fill: fillDecision,
  },
  {
    id: "policies", title: "Policies", none: "None.", labels: ["Policy", "Mode", "Verdicts", "Refused because"], classes: ["policy", "", "", "wide"],
    rows: (report) => report.policies, fill: fillPolicy,
  },
];

const rank = (b) => (b.kept === false ? 0 : b.kept === null ? 1 : 2);
let made = false;

// Tables

const fillText = (row, texts, classes = []) => texts.forEach((text, i) => say(row.parts[i], text, classes[i]));

function fillBackend(row, b) {
  const seen = unknown(b.seen_s) ? "–" : `${duration(b.seen_s)}${b.unseen_s ? `, not seen ${duration(b.unseen_s)}` : ""}`;
  fillText(row, [b.backend, KEPT.get(b.kept), "", whole(b.requests), whole(b.failed), percent(b.late), percent(b.over), seconds(b.worst_p99_s), seen],
    ["", `promise ${KEPT.get(b.kept)}`]);
  row.cells_[2].replaceChildren(b.strip);
}

function fillFinding(row, f) {
  const lasted = unknown(f.until) ? "still open" : duration(f.until - f.since);
  fillText(row, [when(f.since), f.severity, spoken(f.kind), f.summary, lasted, felt(f)], ["", `severity ${GRAVITY.includes(f.severity) ? f.severity : ""}`]);
}

function felt(f) {
  if (unknown(f.felt)) return "–";
  const order = unknown(f.before_s) ? "" : f.before_s === 0 ? ", found at once" : `, found ${duration(Math.abs(f.before_s))} ${f.before_s > 0 ? "before" : "after"}`;
  return `${when(f.felt)}${order}`;
}

function fillDecision(row, d) {
  const what = unknown(d.to) ? spoken(d.knob) : turned(d.knob, d.to);
  fillText(row, [when(d.time), d.verdict, d.backend, what, `${d.reason} (${spoken(d.policy)})`]);
}

function fillPolicy(row, p) {
  const verdicts = p.verdicts.map(([name, n]) => `${count(n)} ${name}`).join(", ") || "nothing to do";
  fillText(row, [spoken(p.policy), p.mode, verdicts, p.refusals.map(([why, n]) => `${count(n)} × ${why}`).join("; ") || "–"]);
}

// The period from left to right: red while users waited too long, orange where something was found, blue where something was decided.
function stripOf(b, report) {
  const svg = document.createElementNS(SPACE, "svg");
  for (const [name, value] of [["class", "strip"], ["viewBox", "0 0 100 20"], ["preserveAspectRatio", "none"], ["role", "img"]]) svg.setAttribute(name, value);
  const span = report.end - report.start;
  const found = report.findings.filter((f) => f.backend === b.backend);
  const decided = report.decisions.filter((d) => d.backend === b.backend);
  svg.setAttribute("aria-label", `${plural(b.breaches.length, "wait")} over the SLO, ${plural(found.length, "finding")}, ${plural(decided.length, "decision")}`);
  if (!(span > 0)) return svg;
  const x = (at) => Math.min(100, Math.max(0, 100 * (at - report.start) / span));
  const bar = (className, from, to, top, height) => {
    if (unknown(from)) return;
    const rect = svg.appendChild(document.createElementNS(SPACE, "rect"));
    const left = Math.min(x(from), 99);
    for (const [name, value] of [["class", className], ["x", left.toFixed(2)], ["y", top], ["width", Math.max(1, x(to) - left).toFixed(2)], ["height", height]]) rect.setAttribute(name, value);
  };
  for (const w of b.breaches.slice(0, MAX_MARKS)) bar("breach", w.since, w.until ?? report.end, 0, 20);
  for (const f of found.slice(0, MAX_MARKS)) bar("found", f.since, f.since, 0, 10);
  for (const d of decided.slice(0, MAX_MARKS)) bar("decided", d.time, d.time, 10, 10);
  return svg;
}

// The page

function headOf(report) {
  const said = [`Replay of ${report.where}, decided by ${report.decides}.`];
  if (report.start !== null && report.end !== null) {
    const ticks = unknown(report.ticks) ? "" : `, ${plural(report.ticks, "tick")}`;
    said.push(`From ${clock(report.start)} to ${clock(report.end)} (${duration(report.end - report.start)}${ticks}). Times are ${zone()}, this browser's.`);
  }
  const promised = unknown(report.objective) ? "" : `, ${percent(report.objective)} of requests good`;
  said.push(`Promise: P99 of ${signal("ttft")} ${seconds(report.ttft_p99_s)}${promised}.`);
  return [...said, ...comparedOf(report.compared)];
}

function comparedOf(compared) {
  if (compared === null) return [];
  const said = [`Computed again: ${whole(compared.same)} of ${whole(compared.ticks)} ticks gave the same findings and decisions.`];
  if (compared.warming_up) said.push(`${whole(compared.warming_up)} others belong to a run whose begin is not recorded.`);
  if (compared.lost) said.push(`${whole(compared.lost)} ticks are missing in the records.`);
  return said;
}

function showDifferences(differences) {
  $("report-differs").hidden = !differences.length;
  say($("report-differs-title"), `What came out differently (${count(differences.length)})`);
  lines($("report-differences"), capped(differences.map((line) => line.slice(0, MAX_DIFFERENCE_CHARS))));
}

// Made once: a table for each part, its pages below it.
function makePart(part) {
  const box = $("report-parts").appendChild(element("section"));
  const title = box.appendChild(element("h3"));
  const { region, body } = makeTable(part.labels, part.title);
  const none = box.appendChild(element("p", "quiet", part.none));
  box.append(region);
  const pager = makePager(part.title, () => fillPart(part));
  box.append(pager.node);
  Object.assign(part, { heading: title, region, body, none, pager });
}

function fillPart(part) {
  const items = part.items;
  say(part.heading, `${part.title} (${count(items.length)})`);
  part.none.hidden = items.length > 0;
  part.region.hidden = items.length === 0;
  keyed(part.body, part.pager.page(items), (item) => String(items.indexOf(item)), () => makeRow(part.labels, part.classes), part.fill);
}

function capped(texts) {
  const more = texts.length - MAX_LINES;
  return more > 0 ? [...texts.slice(0, MAX_LINES), `and ${count(more)} more`] : texts;
}

function show(report, name) {
  if (!made) TABLES.forEach(makePart);
  made = true;
  say($("report-name"), name);
  lines($("report-head"), headOf(report));
  showDifferences(report.compared?.differences ?? []);
  for (const part of TABLES) {
    part.items = part.rows(report);
    part.pager.first();
    fillPart(part);
  }
  say($("report-left-out"), report.decisions_left_out ? `${count(report.decisions_left_out)} more decisions are not in the report.` : "");
  lines($("report-unknown"), capped(report.unknown.length ? report.unknown : ["Nothing that matters here."]));
  $("report").hidden = false;
  $("report-close").hidden = false;
}

async function open(file) {
  say($("report-error"), "");
  try {
    show(await readReport(file), file.name);
  } catch (error) {
    say($("report-error"), `${error.message}.`);
  }
}

function close() {
  $("report").hidden = true;
  $("report-close").hidden = true;
  say($("report-name"), "");
  $("report-file").focus();
}

const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");

// A file that is dropped beside the place for it would open in this tab, and the console would be gone.
function listenForDrops() {
  const place = $("report-place");
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    place.classList.add("wanted");
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && place.classList.remove("wanted"));
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    place.classList.remove("wanted");
    if (event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
  });
}

export function listenForReports() {
  $("report-file").addEventListener("change", (event) => {
    const [file] = event.target.files;
    event.target.value = ""; // the same file again is a change, too
    if (file) open(file);
  });
  $("report-close").addEventListener("click", close);
  listenForDrops();
}
