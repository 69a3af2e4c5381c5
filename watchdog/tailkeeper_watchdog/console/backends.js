// The backends as rows: a page of them at a time, found by words and put into an order. A fleet that fits keeps its order; of a
// larger one those that need attention come first.

import { openDetails } from "./details.js";
import { driftsOf, ENOUGH, inForce, isBeyond, isOld, isPlain, wish } from "./facts.js";
import { $, button, element, keyed, makeRow, meter, say } from "./nodes.js";
import { makePager, PAGE } from "./pager.js";
import { fillTrend, makeTrend } from "./trend.js";
import { clock, count, percent, samples, seconds, share, some, spoken, three, unknown, width } from "./words.js";

const SURE = 0.8; // confidence from which a score needs no word about it: engines often do not tell their CPU
const FEW = 8; // backends that anyone overlooks
const LABELS = ["Backend", "State", "HScore", "P99 first token", "Last 5 min", "Queue", "KV", "GPU", "Weight now", "Why"];
const CLASSES = ["name", "", "score number", "number", "", "number", "number", "number", "number", "wide"];

const pager = makePager("backends", () => showBackends());
let shown = null; // { fleet, drifts }

function makeBackend() {
  const row = makeRow(LABELS, CLASSES);
  row.parts = row.cells_.map((cell) => {
    const box = element("div");
    cell.replaceChildren(box);
    return { main: box.appendChild(element("span")), note: box.appendChild(element("div", "quiet")), box };
  });
  const open = button("", "link", () => openDetails(row.dataset.key));
  row.parts[0].main.replaceWith(open);
  row.parts[0].main = open;
  row.meter = meter();
  row.parts[2].box.prepend(row.meter);
  row.drift = row.parts[3].box.appendChild(element("div", "drift"));
  row.trend = makeTrend();
  row.parts[4].box.replaceChildren(row.trend.svg);
  return row;
}

function put(part, main, note = "", className = undefined) {
  say(part.main, main, className);
  say(part.note, note);
  part.note.hidden = !note;
}

function fillBackend(row, b) {
  const { fleet, drifts } = shown;
  const found = drifts.get(b.backend) || [];
  const [name, state, score, p99, , queue, kv, gpu, weight, why] = row.parts;
  put(name, b.backend, b.model);
  put(state, b.state, isOld(b, fleet) ? `${seconds(b.age_s)} old` : "", `state ${b.state}`);
  row.meter.hidden = b.hscore === null;
  row.meter.fill.style.width = width(b.hscore);
  put(score, b.hscore === null ? "unknown" : b.hscore.toFixed(2), b.hscore === null ? "" : scoreNote(b));
  fillP99(p99, b, fleet.slo_ttft_p99_s);
  say(row.drift, found.length ? `drift: ${some([...new Set(found.map((f) => spoken(f.kind)))])}` : "");
  fillTrend(row.trend, b.backend, fleet.slo_ttft_p99_s, found, fleet.time);
  put(queue, unknown(b.waiting) ? "–" : `${three(b.waiting)} waiting`, unknown(b.running) ? "" : `${three(b.running)} running`);
  put(kv, percent(b.kv_usage_ratio));
  put(gpu, percent(b.gpu_utilization_ratio));
  put(weight, inForce(b), wish(b));
  put(why, b.hold ? `held until ${clock(b.hold.until)}: ${b.hold.reason}` : b.why);
}

// What costs most, and how much the score rests on where that is not all of it.
function scoreNote(b) {
  const costs = b.hscore < 1 ? spoken(b.dominant_factor || "") : "";
  const sure = b.confidence < SURE ? `${share(b.confidence)} known` : "";
  return [costs, sure].filter(Boolean).join(", ");
}

function fillP99(part, b, slo) {
  if (b.p99_s === null) return put(part, b.state === "unknown" ? "unknown" : "no traffic", "", "");
  const over = isBeyond(b, slo);
  const few = b.samples < ENOUGH;
  return put(part, `${b.p99_saturated ? "≥ " : ""}${seconds(b.p99_s)}`,
    `${few ? "too few, " : ""}${samples(b.samples)}${over ? `, SLO ${seconds(slo)}` : ""}`, over && !few ? "over" : "");
}

// What is not known comes last in every order.
const downwards = (value) => (b) => (unknown(value(b)) ? Infinity : -value(b));
const upwards = (value) => (b) => (unknown(value(b)) ? Infinity : value(b));
const ORDERS = {
  attention: (b) => (isPlain(b, shown.fleet.slo_ttft_p99_s) ? 1 : 0),
  listed: () => 0,
  p99: downwards((b) => b.p99_s),
  hscore: upwards((b) => b.hscore),
  queue: downwards((b) => b.waiting),
};

function ordered(backends, many) {
  const by = ORDERS[$("order").value] || ORDERS[many ? "attention" : "listed"];
  const places = new Map(backends.map((b) => [b, by(b)]));
  const apart = (a, b) => (places.get(a) === places.get(b) ? 0 : places.get(a) - places.get(b));
  return [...backends].sort(apart); // equals keep their order
}

function told(fleet, found, many) {
  if (found.length < fleet.backends.length) return `${count(found.length)} of ${count(fleet.backends.length)} found`;
  return many && !$("order").value ? "those that need attention first" : "";
}

function showBackends() {
  if (!shown) return;
  const { fleet } = shown;
  const many = fleet.backends.length > PAGE;
  const text = $("filter").value.trim().toLowerCase();
  $("find").hidden = fleet.backends.length <= FEW;
  const found = text ? fleet.backends.filter((b) => `${b.backend} ${b.model} ${b.state}`.toLowerCase().includes(text)) : fleet.backends;
  say($("shown"), told(fleet, found, many));
  keyed($("backends"), pager.page(ordered(found, many)), (b) => b.backend, makeBackend, fillBackend);
  $("none").hidden = found.length > 0;
}

export function showFleet(fleet, findings) {
  shown = { fleet, drifts: driftsOf(findings) };
  showBackends();
}

export function listenForFinding() {
  const anew = () => { pager.first(); showBackends(); };
  $("filter").addEventListener("input", anew);
  $("order").addEventListener("change", anew);
  $("backends-foot").prepend(pager.node);
}
