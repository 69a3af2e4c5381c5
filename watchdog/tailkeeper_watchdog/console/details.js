// One backend, all of it: what its score is made of, what is open and in force there, and what was decided.

import { askHold, askRelease, askUnhold } from "./change.js";
import { showDecisions } from "./did.js";
import { driftsOf, inForce, isOld, wish } from "./facts.js";
import { fillCard, gravest, makeCard } from "./findings.js";
import { ask } from "./live.js";
import { $, keyed, lines, makeRow, makeTable, meter, say } from "./nodes.js";
import { fillTrend, makeTrend } from "./trend.js";
import { clock, percent, samples, seconds, share, spoken, three, turned, unknown, width } from "./words.js";

const DECISIONS = 20;
const COLUMNS = ["Factor", "Goodness", "Weight", "Measured"];
const CLASSES = ["", "score number", "number", "number"];

const trend = makeTrend();
const factors = makeTable(COLUMNS, "What the HScore is made of");
let open = null; // the backend that is looked at
let latest = null;

export function listenForDetails() {
  $("details-trend").append(trend.svg);
  $("details-factors").append(factors.region);
  $("details-close").addEventListener("click", () => $("details").close());
  $("details").addEventListener("close", () => { open = null; });
  $("details-release").addEventListener("click", () => askRelease(open));
  $("details-hold").addEventListener("click", () => (held() ? askUnhold(open) : askHold(open)));
}

const rowOf = (name) => latest && latest.fleet.backends.find((b) => b.backend === name);
const held = () => Boolean(rowOf(open)?.hold);

export function openDetails(name) {
  open = name;
  $("details-decisions").replaceChildren();
  $("details").showModal();
  fill();
}

export function showDetails(fleet, findings) {
  latest = { fleet, findings };
  if (open !== null) fill();
}

function fill() {
  const b = rowOf(open);
  say($("details-title"), open);
  $("details-body").hidden = !b;
  say($("details-gone"), b ? "" : `${open} is no longer in the fleet.`);
  if (!b) return;
  fillBackend(b);
  showLog(open);
}

function fillBackend(b) {
  const { fleet, findings } = latest;
  const own = findings.filter((f) => f.backend === b.backend);
  say($("details-state"), b.state, `state ${b.state}`);
  say($("details-facts"), facts(b, fleet).join(" · "));
  say($("details-why"), b.why);
  lines($("details-reasons"), b.reasons);
  fillTrend(trend, b.backend, fleet.slo_ttft_p99_s, driftsOf(own).get(b.backend) || [], fleet.time);
  say($("details-p99"), p99(b, fleet.slo_ttft_p99_s));
  fillScore(b);
  keyed($("details-findings"), gravest(own), (f) => f.id, makeCard, (card, f) => fillCard(card, f, fleet.now));
  lines($("details-leases"), b.leases.map((l) => `${turned(l.knob, l.written)} at ${l.gateway} (${l.server}), before ${turned(l.knob, l.prior)}, `
    + `since ${clock(l.since)}, lease until ${clock(l.expires)}${l.confirmed ? "" : ", not read back yet"}`));
  $("details-release").hidden = !b.leases.length;
  say($("details-hold"), b.hold ? "End the hold…" : "Hold…");
}

function facts(b, fleet) {
  const weight = `${inForce(b)} of its traffic`;
  return [
    b.model, b.actual.admission === "drain" ? "drained" : unknown(b.actual.weight) ? "weight unknown" : weight, wish(b),
    b.age_s === null ? "nothing is known of it" : isOld(b, fleet) ? `evidence is ${seconds(b.age_s)} old` : "",
    b.hold ? `held until ${clock(b.hold.until)}: ${b.hold.reason}` : "",
  ].filter(Boolean);
}

function p99(b, slo) {
  if (b.p99_s === null) return `P99 of the first token is not known; SLO ${seconds(slo)}.`;
  return `P99 of the first token ${b.p99_saturated ? "at least " : ""}${seconds(b.p99_s)} (${samples(b.samples)}), SLO ${seconds(slo)}.`;
}

const MEASURES = { ratio: percent, s: seconds };
const measured = (f) => (MEASURES[f.unit] || ((value) => (unknown(value) ? "–" : `${three(value)}\u00a0${f.unit}`)))(f.value);

function makeFactor() {
  const row = makeRow(COLUMNS, CLASSES);
  row.meter = meter();
  row.cells_[1].prepend(row.meter);
  return row;
}

function fillFactor(row, [name, f]) {
  row.meter.fill.style.width = width(f.goodness);
  [spoken(name), f.goodness.toFixed(2), share(f.weight), measured(f)].forEach((text, i) => say(row.parts[i], text));
}

// Whatever its factors are, one that is hung or down has no score; its state stands in the place of a factor then.
function costs(b) {
  if (b.hscore === 1 || !b.dominant_factor) return "";
  const name = spoken(b.dominant_factor);
  return b.dominant_factor in b.factors ? `, most of what is missing by ${name}` : `, because it is ${name}`;
}

function fillScore(b) {
  say($("details-score"), b.hscore === null ? "HScore unknown" : `HScore ${b.hscore.toFixed(2)}${costs(b)}`);
  const rows = Object.entries(b.factors);
  keyed(factors.body, rows, ([name]) => name, makeFactor, fillFactor);
  factors.region.hidden = !rows.length;
  say($("details-unknown"), b.unknown_factors.length ? `Not known: ${b.unknown_factors.map(spoken).join(", ")}.` : "");
}

async function showLog(name) {
  try {
    const decisions = await ask(`/api/v1/decisions?backend=${encodeURIComponent(name)}&limit=${DECISIONS}`);
    if (open === name) showDecisions($("details-decisions"), decisions);
  } catch (error) {
    if (open === name) lines($("details-decisions"), [`The decisions cannot be told: ${error.message}`]);
  }
}
