// What is true of a backend, from the fleet's document alone.

import { percent, unknown } from "./words.js";

export const ENOUGH = 20; // requests behind a P99 worth a sentence
export const STATES = ["serving", "busy", "starting", "hung", "down", "misconfigured", "unknown"];
const DRIFT = new Set(["growth", "distortion", "zscore", "block_e", "slo_burn", "improved_but_broken"]);

export const isDrained = (b) => b.actual.admission === "drain" || b.actual.weight === 0;
export const takesWork = (b) => b.state === "serving" || b.state === "busy";
export const isDead = (b) => b.state === "hung" || b.state === "down";
export const leasesOf = (fleet) => fleet.backends.flatMap((b) => b.leases);
export const isBeyond = (b, slo) => b.p99_s !== null && (b.p99_s > slo || b.p99_saturated);
export const isOver = (b, slo) => isBeyond(b, slo) && b.samples >= ENOUGH && !isDrained(b);
export const isPlain = (b, slo) => b.state === "serving" && !b.leases.length && !wish(b) && !b.hold && !isOver(b, slo);

// Evidence becomes stale after three intervals; from two on its age is worth a word.
export const isOld = (b, fleet) => b.age_s !== null && b.age_s > fleet.stale_after_s * 2 / 3;

// Open findings that say that what users get has changed, by backend.
export function driftsOf(findings) {
  const found = new Map();
  for (const finding of findings) {
    if (!DRIFT.has(finding.kind)) continue;
    found.set(finding.backend, [...(found.get(finding.backend) || []), finding]);
  }
  return found;
}

export function inForce(b) {
  if (b.actual.admission === "drain") return "drained";
  return unknown(b.actual.weight) ? "unknown" : percent(b.actual.weight);
}

// What the policies want where it is not what is in force.
export function wish(b) {
  if (b.desired.admission === "drain") return b.actual.admission === "drain" ? "" : "wanted: drained";
  const wanted = b.desired.weight;
  if (unknown(wanted) || unknown(b.actual.weight) || Math.abs(wanted - b.actual.weight) <= 0.02) return "";
  return wanted < b.actual.weight ? `wanted: ${percent(wanted)}` : `returning to ${percent(wanted)}`;
}
