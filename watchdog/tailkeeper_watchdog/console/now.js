// Now: the sentence that says whether it is bad, the count of each state, and what the watchdog cannot do.

import { ENOUGH, STATES, isBeyond, isDead, isDrained, takesWork } from "./facts.js";
import { $, element, keyed, lines, say } from "./nodes.js";
import { clock, count, plural, samples, seconds, some } from "./words.js";

const MAX_TROUBLES = 20;

function users(fleet, findings) {
  const measured = fleet.backends.filter((b) => b.p99_s !== null && !isDrained(b));
  const sure = measured.filter((b) => b.samples >= ENOUGH);
  if (!sure.length) {
    const most = Math.max(0, ...measured.map((b) => b.samples));
    return most ? `Too few requests for a P99 (${samples(most)}).` : "No traffic is seen.";
  }
  const worst = sure.reduce((a, b) => (b.p99_s > a.p99_s ? b : a));
  const wait = `${worst.p99_saturated ? "at least " : ""}${seconds(worst.p99_s)}`;
  const slo = fleet.slo_ttft_p99_s;
  const where = `for the first token at P99 (${worst.backend}, ${samples(worst.samples)})`;
  if (!isBeyond(worst, slo)) return `Users wait at most ${wait} ${where}, within the SLO of ${seconds(slo)}.`;
  const since = findings.filter((f) => f.backend === worst.backend && f.severity !== "info").map((f) => f.since);
  const begun = since.length ? `, since ${clock(Math.min(...since), false)}` : "";
  return `Users of ${worst.model || worst.backend} wait ${wait} ${where}, SLO ${seconds(slo)}${begun}.`;
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

function serving(fleet) {
  const all = fleet.backends.length;
  const able = fleet.backends.filter(takesWork).length;
  return able === all ? `All ${plural(all, "backend")} serving.` : `${count(able)} of ${plural(all, "backend")} serving.`;
}

function troubles(fleet) {
  const found = [];
  if (fleet.error) found.push(`Nothing new is known: ${fleet.error}`);
  for (const [name, error] of Object.entries(fleet.gateway_errors)) found.push(`Gateway ${name} does not answer: ${error}`);
  for (const b of fleet.backends) if (b.actual.doubt) found.push(`${b.backend}: ${b.actual.doubt}`);
  return found.slice(0, MAX_TROUBLES);
}

// Read out by screen readers, so only when it is another story: never a number that moves with every tick.
function announce(fleet, findings) {
  const paging = findings.filter((f) => f.severity === "page").length;
  say($("announce"), [serving(fleet), dead(fleet), paging ? `${plural(paging, "finding")} to page for.` : ""].filter(Boolean).join(" "));
}

export function showNow(fleet, findings) {
  say($("now"), [serving(fleet), users(fleet, findings), dead(fleet)].filter(Boolean).join(" "));
  announce(fleet, findings);
  const counts = STATES.map((state) => [state, fleet.backends.filter((b) => b.state === state).length]).filter(([, n]) => n);
  keyed($("states"), counts, ([state]) => state, ([state]) => element("li", `state ${state}`),
    (node, [state, n]) => say(node, `${count(n)} ${state}`));
  lines($("trouble"), troubles(fleet));
  say($("mode"), fleet.paused ? `paused: ${fleet.paused_because}` : `mode ${fleet.mode}`, `chip ${fleet.paused ? "paused" : fleet.mode}`);
  $("shard").hidden = !fleet.shard;
  if (fleet.shard) say($("shard"), `shard ${fleet.shard.index}/${fleet.shard.of} · ${plural(fleet.shard.elsewhere, "backend")} elsewhere`);
  const able = fleet.backends.filter(takesWork).length;
  document.title = `${count(able)} of ${count(fleet.backends.length)} serving · Tailkeeper`;
}
