// The console: asks the watchdog's own API every two seconds and writes what it says. Everything is set as text,
// never as markup, because names and reasons come from engines and people.
"use strict";

const PERIOD_MS = 2000;
const SPARK_POINTS = 150; // five minutes
const history = new Map();

const $ = (id) => document.getElementById(id);

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined && text !== null) node.textContent = text;
  return node;
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${three(value * 1000)} ms` : `${three(value)} s`;
}
const three = (value) => (value === 0 ? "0" : Number(value.toPrecision(3)).toString());
const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`);
const time = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hour12: false });

function duration(value) {
  const rest = Math.max(0, Math.round(value));
  return rest < 60 ? `${rest} s` : `${Math.floor(rest / 60)} min ${rest % 60} s`;
}

function p99(backend) {
  if (backend.p99_s === null) return "no traffic";
  return `${backend.p99_saturated ? "≥ " : ""}${seconds(backend.p99_s)} (n = ${backend.samples})`;
}

function headline(fleet) {
  const backends = fleet.backends;
  const able = backends.filter((b) => b.state === "serving" || b.state === "busy").length;
  const known = backends.filter((b) => b.p99_s !== null && b.actual.admission !== "drain");
  const worst = known.reduce((a, b) => (a === null || b.p99_s > a.p99_s ? b : a), null);
  let text = `${able} of ${backends.length} backends serving.`;
  if (worst) {
    text += ` Users of ${worst.model || worst.backend} wait ${worst.p99_saturated ? "at least " : ""}${seconds(worst.p99_s)} for the first token`
      + ` at P99 on the slowest (${worst.backend}), SLO ${seconds(fleet.slo_ttft_p99_s)}.`;
  } else text += " No traffic is seen.";
  return text;
}

function showNow(fleet) {
  const now = headline(fleet);
  if ($("now").textContent !== now) $("now").textContent = now;
  const counts = new Map();
  for (const b of fleet.backends) counts.set(b.state, (counts.get(b.state) || 0) + 1);
  $("states").replaceChildren(...[...counts].map(([state, n]) => element("li", `state ${state}`, `${n} ${state}`)));
  $("trouble").hidden = !fleet.error;
  $("trouble").textContent = fleet.error || "";
  const mode = $("mode");
  mode.textContent = fleet.paused ? `paused: ${fleet.paused_because}` : `mode ${fleet.mode}`;
  mode.className = `chip ${fleet.paused ? "paused" : fleet.mode}`;
  $("clock").textContent = `tick ${fleet.tick}, ${time(fleet.time)}`;
}

function showFindings(findings) {
  const cards = findings.map((f) => {
    const card = element("div", "card");
    card.append(element("p", null, f.summary));
    const lost = f.evidence.telemetry_lost ? ", telemetry lost since" : "";
    card.append(element("p", "quiet", `${f.severity} · ${f.kind} · since ${time(f.since)}${lost}`));
    for (const share of f.shares) card.append(element("p", null, `${share.dimension} ${share.value}: ${percent(share.share)}`));
    return card;
  });
  $("findings").replaceChildren(...(cards.length ? cards : [element("p", "quiet", "No open findings.")]));
}

function showLeases(fleet) {
  const rows = fleet.backends.flatMap((b) => b.leases).map((lease) => {
    const item = element("li");
    const written = typeof lease.written === "number" ? percent(lease.written) : lease.written;
    item.append(element("span", "verdict applied", `${lease.server}: ${lease.knob} ${written}`));
    item.append(element("span", "quiet", ` lease ends in ${duration(lease.expires - Date.now() / 1000)} unless still needed. ${lease.reason}`));
    return item;
  });
  $("leases").replaceChildren(...rows);
}

function showDecisions(decisions) {
  const rows = decisions.map((d) => {
    const item = element("li");
    item.append(element("span", "quiet", `${time(d.time)} `));
    item.append(element("span", `verdict ${d.verdict}`, d.verdict));
    const to = typeof d.to === "number" ? percent(d.to) : d.to;
    item.append(document.createTextNode(` ${d.backend}: ${d.knob} → ${to}`));
    item.append(element("div", "quiet", d.reason));
    return item;
  });
  $("decisions").replaceChildren(...(rows.length ? rows : [element("li", "quiet", "Nothing yet.")]));
}

function spark(name, value, slo) {
  const points = history.get(name) || [];
  points.push(value);
  if (points.length > SPARK_POINTS) points.shift();
  history.set(name, points);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 100 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `P99 of ${name} over the last minutes against the SLO`);
  const top = Math.max(slo * 1.5, ...points.filter((p) => p !== null));
  const y = (v) => (19 - 18 * v / top).toFixed(1);
  const line = document.createElementNS(svg.namespaceURI, "line");
  for (const [key, v] of Object.entries({ x1: 0, x2: 100, y1: y(slo), y2: y(slo) })) line.setAttribute(key, v);
  svg.append(line);
  let run = [];
  const flush = () => {
    if (run.length > 1) {
      const poly = document.createElementNS(svg.namespaceURI, "polyline");
      poly.setAttribute("points", run.join(" "));
      svg.append(poly);
    }
    run = [];
  };
  points.forEach((p, i) => (p === null ? flush() : run.push(`${(100 * i / (SPARK_POINTS - 1)).toFixed(1)},${y(p)}`)));
  flush();
  return svg;
}

function bar(ratio) {
  const cell = element("td", "number");
  if (ratio === null) { cell.textContent = "unknown"; return cell; }
  const box = element("span", "bar");
  const fill = element("i");
  fill.style.width = `${Math.round(ratio * 100)}%`;
  box.append(fill);
  cell.append(box, document.createTextNode(ratio.toFixed(2)));
  return cell;
}

function row(backend, slo) {
  const tr = element("tr");
  const name = element("td", null, backend.backend);
  const state = element("td");
  state.append(element("span", `state ${backend.state}`, backend.state));
  if (backend.age_s !== null && backend.age_s > 2) state.append(element("div", "quiet", `${three(backend.age_s)} s old`));
  const score = bar(backend.hscore);
  if (backend.dominant_factor && backend.hscore < 1) score.append(element("div", "quiet", backend.dominant_factor));
  const line = element("td");
  line.append(spark(backend.backend, backend.p99_s, slo));
  const queue = backend.waiting === null ? "–" : `${backend.running ?? "–"} run, ${backend.waiting} wait`;
  const actual = backend.actual;
  const weight = actual.admission === "drain" ? "drained" : percent(actual.weight);
  const why = element("td", "wide", backend.why || "nothing to do");
  tr.append(name, state, score, element("td", "number", p99(backend)), line, element("td", "number", queue),
    element("td", "number", percent(backend.kv_usage_ratio)), element("td", "number", percent(backend.gpu_utilization_ratio)),
    element("td", "number", weight), why);
  return tr;
}

function showPolicies(policies) {
  const rows = policies.flatMap((p) => p.backends.map((b) => {
    const tr = element("tr");
    const words = { enforced: "enforced", observed: "observed", not_enforceable: "not enforceable" };
    tr.append(element("td", null, p.policy), element("td", null, p.mode), element("td", null, b.backend),
      element("td", null, words[b.actuation]), element("td", "wide", b.why));
    return tr;
  }));
  $("policies").replaceChildren(...rows);
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

async function refresh() {
  try {
    const [fleet, findings, decisions, policies] = await Promise.all([
      ask("/api/v1/fleet"), ask("/api/v1/findings?open=true"), ask("/api/v1/decisions?limit=50"), ask("/api/v1/policies"),
    ]);
    showNow(fleet);
    showFindings(findings);
    showLeases(fleet);
    showDecisions(decisions);
    $("backends").replaceChildren(...fleet.backends.map((b) => row(b, fleet.slo_ttft_p99_s)));
    showPolicies(policies);
  } catch (error) {
    $("mode").textContent = `no answer from the watchdog: ${error.message}`;
    $("mode").className = "chip lost";
  } finally {
    setTimeout(refresh, PERIOD_MS);
  }
}

refresh();
