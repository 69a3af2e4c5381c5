// P99 of the first token over the last five minutes: kept per backend, drawn as one line against the SLO, with a mark where a
// finding of drift was opened.

import { clock, seconds, some, spoken } from "./words.js";

const SPAN_S = 300;
const GAP_S = 30; // no line is drawn across a longer silence
const MARKS = 3;
const SPACE = "http://www.w3.org/2000/svg";

const history = new Map(); // backend → [[epoch seconds, P99 or null]], the newest last

export function remember(fleet) {
  const names = new Set(fleet.backends.map((b) => b.backend));
  for (const name of history.keys()) if (!names.has(name)) history.delete(name);
  for (const b of fleet.backends) {
    const points = history.get(b.backend) || [];
    while (points.length && points.at(-1)[0] > fleet.time) points.pop(); // the watchdog's clock was set back
    if (points.length && points.at(-1)[0] === fleet.time) continue; // of this tick already
    points.push([fleet.time, b.p99_s]);
    const old = points.findIndex(([at]) => at >= fleet.time - SPAN_S);
    if (old > 0) points.splice(0, old);
    history.set(b.backend, points);
  }
}

// What the watchdog saw before this page was opened; `now` is its clock.
export function recall(trends, now) {
  for (const [name, values] of Object.entries(trends.p99_s)) {
    const known = history.get(name) || [];
    const begin = known.length ? known[0][0] : now;
    const before = values.map((p, i) => [now - trends.spacing_s * (values.length - 1 - i), p]).filter(([at]) => at < begin);
    history.set(name, [...before, ...known]);
  }
}

const svgPart = (name) => document.createElementNS(SPACE, name);

export function makeTrend() {
  const svg = svgPart("svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 100 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const slo = svg.appendChild(svgPart("line"));
  slo.setAttribute("class", "slo");
  slo.setAttribute("x1", "0");
  slo.setAttribute("x2", "100");
  return { svg, slo };
}

// The points as lines: a new one after each gap.
function runs(points, x, y) {
  const found = [[]];
  let last = -Infinity;
  for (const [at, p] of points) {
    if (at - last > GAP_S) found.push([]);
    if (p === null) found.push([]);
    else found.at(-1).push(`${x(at).toFixed(1)},${y(p).toFixed(1)}`);
    last = at;
  }
  return found.filter((run) => run.length > 1).map((run) => run.join(" "));
}

// As many `name` elements as there are items, each set by `set`.
function drawn(svg, name, className, items, set) {
  const old = [...svg.getElementsByClassName(className)];
  items.forEach((item, i) => {
    const node = old[i] || svg.appendChild(svgPart(name));
    node.setAttribute("class", className);
    set(node, item);
  });
  for (const node of old.slice(items.length)) node.remove();
}

export function fillTrend({ svg, slo }, name, limit, drifts, now) {
  const points = history.get(name) || [];
  const top = Math.max(limit * 1.4, ...points.map(([, p]) => p || 0));
  const y = (value) => 19 - 18 * value / top;
  const x = (at) => 100 * (at - now + SPAN_S) / SPAN_S;
  slo.setAttribute("y1", y(limit).toFixed(1));
  slo.setAttribute("y2", y(limit).toFixed(1));
  drawn(svg, "polyline", "line", runs(points, x, y), (node, run) => node.setAttribute("points", run));
  const marks = drifts.filter((f) => f.since > now - SPAN_S).slice(0, MARKS);
  drawn(svg, "line", "drift", marks, (node, finding) => {
    const at = Math.min(100, x(finding.since)).toFixed(1);
    for (const [key, value] of [["x1", at], ["x2", at], ["y1", 0], ["y2", 20]]) node.setAttribute(key, value);
  });
  svg.setAttribute("aria-label", inWords(name, limit, points, drifts));
}

function inWords(name, limit, points, drifts) {
  const seen = points.map(([, p]) => p).filter((p) => p !== null);
  const range = seen.length ? `between ${seconds(Math.min(...seen))} and ${seconds(Math.max(...seen))}` : "not known";
  const marks = drifts.length ? `; drift: ${some(drifts.map((f) => `${spoken(f.kind)} since ${clock(f.since, false)}`))}` : "";
  return `P99 of ${name} over the last five minutes: ${range}, SLO ${seconds(limit)}${marks}`;
}
