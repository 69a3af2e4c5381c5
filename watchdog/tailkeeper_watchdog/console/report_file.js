// A replay report as a file holds it, made safe to show: whatever is in the file, what comes out has the report's own shape, with
// null for what is missing or of another kind. Nothing leaves this page.

const MAX_BYTES = 64 * 1024 * 1024; // 10,000 decisions are 4 MB
const MAX_CHARS = 2_000;

const text = (value, otherwise = "") => (typeof value === "string" ? value.slice(0, MAX_CHARS) : otherwise);
const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
const table = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
const rows = (value, read) => (Array.isArray(value) ? value.map((item) => read(table(item))) : []);
const texts = (value) => (Array.isArray(value) ? value.filter((item) => typeof item === "string").map((item) => text(item)) : []);
const numbers = (value) => Object.entries(table(value)).map(([name, n]) => [text(name), number(n)]).filter(([, n]) => n !== null);
const scalar = (value) => number(value) ?? text(value, null);

const HOW = "make one with: tailkeeper replay … --json > report.json";

// Raises Error that says what is wrong with the file, and how to make a right one.
export async function readReport(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} has ${Math.round(file.size / 1e6)} MB; a report of at most ${MAX_BYTES / 1024 / 1024} MB is shown`);
  let found;
  try {
    found = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`${file.name} cannot be read as JSON; ${HOW}`, { cause: error });
  }
  const missing = ["source", "period", "backends", "findings", "decisions"].filter((key) => !(key in table(found)));
  if (missing.length) throw new Error(`${file.name} is no replay report: it has no ${missing.join(", no ")}; ${HOW}`);
  return reportOf(found);
}

function reportOf(found) {
  const source = table(found.source);
  const period = table(found.period);
  const slo = table(found.slo);
  return {
    where: text(source.where, "–"),
    decides: text(source.decides, "–"),
    start: number(period.start), end: number(period.end), seconds: number(period.seconds), ticks: number(period.ticks),
    ttft_p99_s: number(slo.ttft_p99_s), objective: number(slo.objective),
    backends: rows(found.backends, backendOf),
    findings: rows(found.findings, findingOf),
    decisions: rows(found.decisions, decisionOf),
    decisions_left_out: number(found.decisions_left_out) || 0,
    policies: rows(found.policies, policyOf),
    unknown: texts(found.unknown),
    compared: found.compared === undefined ? null : comparedOf(table(found.compared)),
  };
}

const backendOf = (b) => ({
  backend: text(b.backend, "–"),
  seen_s: number(b.seen_s), unseen_s: number(b.unseen_s),
  requests: number(b.requests), failed: number(b.failed),
  late: number(b.late_first_tokens_share), over: number(b.over_slo_time_share),
  kept: typeof b.sla_kept === "boolean" ? b.sla_kept : null,
  worst_p99_s: number(b.worst_p99_s),
  states: numbers(b.states_s),
  breaches: rows(b.breaches, (w) => ({ signal: text(w.signal), since: number(w.since), until: number(w.until), worst_s: number(w.worst_s) })),
});

const findingOf = (f) => ({
  kind: text(f.kind), backend: text(f.backend, "–"), severity: text(f.severity), since: number(f.since), until: number(f.until),
  summary: text(f.summary), before_s: number(f.found_before_users_s), felt: number(table(f.users_felt).since),
});

const decisionOf = (d) => ({
  time: number(d.time), policy: text(d.policy), backend: text(d.backend, "–"), knob: text(d.knob), to: scalar(d.to),
  verdict: text(d.verdict), reason: text(d.reason),
});

const policyOf = (p) => ({ policy: text(p.policy), mode: text(p.mode), verdicts: numbers(p.verdicts), refusals: numbers(p.refusals) });

const comparedOf = (c) => ({
  ticks: number(c.ticks), same: number(c.same), warming_up: number(c.warming_up), lost: number(c.lost), differences: texts(c.differences),
});
