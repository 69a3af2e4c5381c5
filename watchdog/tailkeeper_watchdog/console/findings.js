// Why: open findings as cards, the gravest first, each with what explains it and how sure that is.

import { isOver, takesWork } from "./facts.js";
import { $, element, keyed, meter, say } from "./nodes.js";
import { clock, count, duration, plural, share, some, spoken, unknown, width } from "./words.js";

const MAX_CARDS = 30;
const RANK = { page: 0, ticket: 1, info: 2 };

export const gravest = (findings) => [...findings].sort((a, b) => RANK[a.severity] - RANK[b.severity] || b.since - a.since);

export function makeCard() {
  const card = element("div");
  card.parts = { summary: element("p"), facts: element("p", "quiet"), severity: element("span", "severity"), rest: element("span"), shares: element("div") };
  card.parts.facts.append(card.parts.severity, card.parts.rest);
  card.append(card.parts.facts, card.parts.summary, card.parts.shares);
  return card;
}

export function fillCard(card, finding, now) {
  say(card.parts.summary, finding.summary);
  say(card.parts.severity, finding.severity);
  const lost = finding.evidence.telemetry_lost ? ", telemetry lost since: stays open until there is evidence" : "";
  say(card.parts.rest, ` · ${spoken(finding.kind)} · since ${clock(finding.since)} (${duration(now - finding.since)})${lost}`);
  if (card.className !== `card ${finding.severity}`) card.className = `card ${finding.severity}`;
  keyed(card.parts.shares, finding.shares, (s) => `${s.dimension} ${s.value}`, makeShare, fillShare);
}

function makeShare(s) {
  const line = element("p", "share");
  line.parts = { meter: meter(), number: element("span", "number"), sure: element("span", "quiet") };
  const what = element("span", null, s.dimension === "unknown" ? "not explained" : s.said);
  what.append(line.parts.sure);
  line.append(line.parts.meter, line.parts.number, what);
  return line;
}

function fillShare(line, s) {
  line.parts.meter.fill.style.width = width(s.share);
  say(line.parts.number, share(s.share));
  say(line.parts.sure, unknown(s.confidence) || s.dimension === "unknown" ? "" : ` (${share(s.confidence)} sure)`);
}

// What to say where no finding is open. Quiet must be earned: no finding is not yet good.
function calm(fleet) {
  const over = fleet.backends.filter((b) => isOver(b, fleet.slo_ttft_p99_s)).map((b) => b.backend);
  const out = fleet.backends.filter((b) => !takesWork(b)).map((b) => b.backend);
  if (over.length) return [`No open finding explains why ${some(over)} ${over.length === 1 ? "is" : "are"} over the SLO.`, "quiet"];
  if (out.length) return [`No open findings; ${some(out)} ${out.length === 1 ? "is" : "are"} not serving.`, "quiet"];
  return ["All quiet: nothing is wrong that the watchdog can see.", "all-quiet"];
}

export function showWhy(fleet, findings, now) {
  say($("findings-count"), findings.length ? plural(findings.length, "open finding") : "");
  $("findings").hidden = !findings.length;
  $("quiet").hidden = Boolean(findings.length);
  say($("quiet"), ...calm(fleet));
  keyed($("findings"), gravest(findings).slice(0, MAX_CARDS), (f) => f.id, makeCard, (card, f) => fillCard(card, f, now));
  const more = findings.length - MAX_CARDS;
  say($("findings-more"), more > 0 ? `and ${count(more)} more` : "");
}
