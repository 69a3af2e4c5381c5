// What explains the rest: why nothing happened, what each policy can do where, what was promised and kept.

import { leasesOf, wish } from "./facts.js";
import { $, keyed, lines, makeRow, say } from "./nodes.js";
import { clock, count, percent, samples, seconds, share, some, spoken, three, unknown } from "./words.js";

const MAX_LINES = 20;

function unmet(b) {
  return !b.leases.length && (wish(b).startsWith("wanted") || b.state === "unknown" || b.state === "misconfigured");
}

export function showNothing(fleet) {
  const said = [];
  if (fleet.paused) said.push(`Paused (${fleet.paused_because}): what is found is told, nothing new is done. Resume ends it.`);
  if (fleet.mode === "observe") said.push("No policy is in mode enforce: what would be done is written down, nothing is changed.");
  if (fleet.mode === "advise") said.push("Policies advise only: what would be done is notified, nothing is changed.");
  for (const b of fleet.backends) if (b.hold) said.push(`${b.backend} is held by an operator until ${clock(b.hold.until)}: ${b.hold.reason}`);
  for (const b of fleet.backends) if (unmet(b)) said.push(`${b.backend}: ${b.why}`);
  // In part: a guard let less through than was wanted, and the backend itself has both numbers and why.
  for (const b of fleet.backends) if (b.leases.length && wish(b).startsWith("wanted")) said.push(`${b.backend}: only in part, ${wish(b)}. Open it to see why.`);
  if (!said.length) said.push(leasesOf(fleet).length ? "All that was wanted is done and read back." : "Nothing was wanted: no policy asks for a change.");
  const more = said.length - MAX_LINES;
  lines($("nothing"), more > 0 ? [...said.slice(0, MAX_LINES), `and ${count(more)} more; see the backends`] : said);
}

const REACH = { enforced: "enforced", observed: "observed", not_enforceable: "not enforceable" };
const REACHES = Object.keys(REACH);

// A policy at a backend; where it goes in part, each of its knobs.
function cellsOf(policy, backend) {
  const name = spoken(policy.policy);
  const knobs = Object.entries(backend.knobs);
  if (new Set(knobs.map(([, knob]) => knob.actuation)).size < 2) return [{ ...backend, name }];
  return knobs.map(([knob, reach]) => ({ ...reach, name: `${name}: ${spoken(knob)}` }));
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

const makePolicyRow = () => makeRow(["Policy", "Here", "Backends", "Because"], ["policy", "number", "", "wide"]);

export function showPolicies(policies) {
  const tell = (row) => [row.names.join(", "), REACH[row.cell.actuation] || row.cell.actuation, row.where, row.because];
  const order = (row) => REACHES.indexOf(row.cell.actuation);
  say($("policies-note"), "");
  const rows = policyRows(policies).sort((a, b) => order(a) - order(b)); // what acts first
  keyed($("policies"), rows, (row) => row.key, makePolicyRow,
    (tr, row) => tell(row).forEach((text, i) => say(tr.parts[i], text)));
}

export function showWeights(config) {
  const parts = Object.entries(config.weights).map(([name, weight]) => `${spoken(name)} ${percent(weight)}`);
  const [last] = config.history;
  say($("weights"), `HScore weighs ${parts.join(", ")}.${last ? ` Changed ${clock(last.time)} by ${last.by}.` : ""}`);
}

const PROMISE_COLUMNS = ["Tier", "First output within", "Last hour", "Last day", "30 days", "Error budget left, 30 days"];
const makePromiseRow = () => makeRow(PROMISE_COLUMNS, ["policy", "number", "number", "number", "number", "number"]);

// Down, and one digit more than the objective has: 99.96 % must not read as 100 %.
const kept = (w) => (unknown(w.compliance) ? "no requests"
  : `${(Math.floor(w.compliance * 1e4) / 100).toFixed(2)}\u00a0% (${samples(Math.round(w.requests))})`);

function budget(w) {
  if (unknown(w.budget_left)) return "–";
  return w.budget_used > 1 ? `overspent ${three(w.budget_used)} times` : share(w.budget_left);
}

const WINDOWS = { "1h": "the last hour", "1d": "the last day", "30d": "30 days" };
const covered = (ratio) => (ratio > 0 && ratio < 0.01 ? "under 1\u00a0%" : share(ratio));

// Built-in tiers that nobody asked for say nothing.
export function showPromises(slo) {
  const asked = (tier) => !tier.tier.startsWith("default-") || tier.windows.some((w) => w.requests > 0);
  const seen = Object.entries(slo.coverage).map(([name, ratio]) => `${covered(ratio)} of ${WINDOWS[name] || name}`).join(", ");
  say($("promises-note"), `Goal ${percent(slo.objective)}; seen ${seen}; ${slo.note}.`);
  const tell = (tier) => [tier.tier, seconds(tier.limit_s), ...tier.windows.map(kept), budget(tier.windows.at(-1))];
  keyed($("promises"), slo.tiers.filter(asked), (tier) => tier.tier, makePromiseRow,
    (tr, tier) => tell(tier).forEach((text, i) => say(tr.parts[i], text)));
}
