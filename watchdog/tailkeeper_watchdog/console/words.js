// Numbers, times and names as people read them: three digits, always a unit, and what is not known is never a number.

const BLANK = "\u00a0"; // no number is torn from its unit

export const unknown = (value) => value === null || value === undefined;
export const three = (value) => (value === 0 ? "0" : Number(value.toPrecision(3)).toString());
export const percent = (value) => (unknown(value) ? "–" : `${three(value * 100)}${BLANK}%`);
export const share = (value) => (unknown(value) ? "–" : `${Math.round(value * 100)}${BLANK}%`);
export const width = (ratio) => `${Math.round(100 * Math.min(1, Math.max(0, ratio || 0)))}%`;
export const spoken = (name) => name.replaceAll("_", " ");
export const count = (n) => n.toLocaleString("en");
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const samples = (n) => `n${BLANK}=${BLANK}${count(n)}`;

const SIGNALS = { ttft: "the first token", itl: "each token", e2e: "the whole answer" };
export const signal = (name) => SIGNALS[name] || name;

export function seconds(value) {
  if (unknown(value)) return "–";
  return value < 1 ? `${three(value * 1000)}${BLANK}ms` : `${three(value)}${BLANK}s`;
}

// By this browser's clock and zone; the day where it is not today.
export function clock(unix, withSeconds = true) {
  const at = new Date(unix * 1000);
  if (Number.isNaN(at.getTime())) return "–";
  const shape = { hour: "2-digit", minute: "2-digit", hour12: false, ...(withSeconds ? { second: "2-digit" } : {}) };
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("en-CA")} `;
  return day + at.toLocaleTimeString("en-GB", shape);
}

export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  const two = (n) => String(Math.floor(Math.abs(n))).padStart(2, "0");
  return minutes === 0 ? "UTC" : `UTC${minutes < 0 ? "−" : "+"}${two(minutes / 60)}:${two(minutes % 60)}`;
}

export function duration(value) {
  const rest = Math.max(0, Math.round(value));
  if (rest < 60) return `${rest} s`;
  if (rest < 3600) return `${Math.floor(rest / 60)} min ${rest % 60} s`;
  if (rest < 172_800) return `${Math.floor(rest / 3600)} h ${Math.floor((rest % 3600) / 60)} min`;
  return `${three(rest / 86_400)} days`;
}

export function some(names, most = 3) {
  const more = names.length - most;
  return more > 0 ? `${names.slice(0, most).join(", ")} and ${count(more)} more` : names.join(", ");
}

export function turned(knob, value) {
  if (knob === "admission") return value === "drain" ? "drained" : value === "serve" ? "admitted" : String(value);
  if (knob === "concurrency_limit" && value === 0) return "no concurrency limit";
  if (knob === "weight" && typeof value === "number") return `weight ${percent(value)}`;
  return `${spoken(knob)} ${typeof value === "number" ? three(value) : value}`;
}

// What the watchdog said was wrong with a call.
export function detail(answer) {
  if (typeof answer.detail === "string") return answer.detail;
  return (answer.detail || []).map((d) => `${d.loc.join(".")}: ${d.msg}`).join("; ");
}
