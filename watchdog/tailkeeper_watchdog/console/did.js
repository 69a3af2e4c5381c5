// What we did: our changes in force with the end of their leases, and the decision log.

import { askRelease, askReleaseAll } from "./change.js";
import { $, button, element, keyed, say } from "./nodes.js";
import { clock, count, duration, plural, spoken, turned } from "./words.js";

const MAX_CARDS = 30;
const LAST_MINUTE_S = 60; // from here on an end is told to the second; a lease that is needed is renewed long before

function makeLease(b) {
  const item = element("li");
  const head = element("div", "head");
  item.parts = { what: element("span", "verdict applied"), until: element("p", "quiet"), reason: element("p", "quiet") };
  const release = button("Release…", "", () => askRelease(b.backend));
  release.setAttribute("aria-label", `Release ${b.backend}`);
  head.append(item.parts.what, release);
  item.append(head, item.parts.until, item.parts.reason);
  return item;
}

function fillLease(item, b, now) {
  const what = [...new Set(b.leases.map((l) => turned(l.knob, l.written)))].join(", "); // one thing at two gateways is said once
  say(item.parts.what, `${b.backend}: ${what}`);
  const places = [...new Set(b.leases.map((l) => l.gateway))].join(", ");
  const unsure = b.leases.every((l) => l.confirmed) ? "" : " · not read back yet";
  const left = Math.min(...b.leases.map((l) => l.expires)) - now;
  const ends = left > LAST_MINUTE_S ? `in ${duration(left)}` : left > 0 ? `in ${duration(left)}, unless still needed` : "now";
  say(item.parts.until, `at ${places} since ${clock(b.leases[0].since)} · lease ends ${ends}${unsure}`);
  say(item.parts.reason, [...new Set(b.leases.map((l) => l.reason))].join("; "));
}

export function makeDecision(d) {
  if (!d) return element("li", "quiet", "No decisions yet.");
  const item = element("li");
  const head = element("p");
  head.append(element("span", "quiet", `${clock(d.time)} `), element("span", `verdict ${d.verdict}`, d.verdict),
    document.createTextNode(` ${d.backend}: ${turned(d.knob, d.to)}`));
  item.append(head, element("p", "quiet", `${d.reason} (${spoken(d.policy)})`));
  return item;
}

// With their time: a watchdog that began with an empty ledger numbers from one again.
export const showDecisions = (list, decisions) => keyed(list, decisions.length ? decisions : [null],
  (d) => (d ? `${d.id} ${d.time}` : "none"), makeDecision, () => {});

export function showDid(fleet, decisions, now) {
  const changed = fleet.backends.filter((b) => b.leases.length);
  say($("leases-count"), changed.length ? `${plural(changed.length, "backend")} changed now` : "nothing of ours is in force");
  $("release-all").hidden = changed.length < 2;
  keyed($("leases"), changed.slice(0, MAX_CARDS), (b) => b.backend, makeLease, (item, b) => fillLease(item, b, now));
  const more = changed.length - MAX_CARDS;
  say($("leases-more"), more > 0 ? `and ${count(more)} more` : "");
  showDecisions($("decisions"), decisions);
}

export function listenForReleaseAll() {
  $("release-all").addEventListener("click", askReleaseAll);
}
