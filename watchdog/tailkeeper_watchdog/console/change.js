// Everything that changes something: said what it will do, confirmed, sent, and told how it went. A token lives in this page's
// memory and nowhere else, and is asked for once.

import { $, say } from "./nodes.js";
import { clock, detail, plural } from "./words.js";

const DEADLINE_MS = 20_000; // a release writes to gateways and reads back

let token = null;
let asked = null; // what the dialog is about
let stateOf = () => null;
let afterwards = () => {};

// `state` gives a backend's state where it takes no work, or null; `after` shows the fleet anew.
export function listenForChanges({ state, after }) {
  stateOf = state;
  afterwards = after;
  $("change-form").addEventListener("submit", send);
  $("change-cancel").addEventListener("click", () => $("change").close());
  $("change").addEventListener("close", () => { $("token").value = ""; });
}

// `held`: with a reason and a time, for a hold.
function ask(wanted) {
  asked = wanted;
  say($("change-title"), wanted.title);
  say($("change-text"), wanted.text);
  say($("change-do"), wanted.verb);
  say($("change-error"), "");
  $("hold-fields").hidden = !wanted.held;
  $("hold-reason").required = Boolean(wanted.held);
  $("token-label").hidden = true;
  $("change").showModal();
}

const AGAIN = "The watchdog may act again after its cool-down; pause it, or hold the backend, to keep it from doing so.";

export function askRelease(backend) {
  const state = stateOf(backend);
  const ill = state ? ` It is ${state} now: requests sent to it may get no answer.` : "";
  ask({
    title: `Release ${backend}?`, text: `Everything we changed goes back to what it was before.${ill} ${AGAIN}`, verb: "Release",
    method: "POST", path: "/api/v1/release", body: () => ({ backend }), told: () => `${backend} was released`,
  });
}

export const askReleaseAll = () => ask({
  title: "Release everything?", text: `All that we changed goes back to what it was before, at every backend, whether it is well or not. ${AGAIN}`,
  verb: "Release all", method: "POST", path: "/api/v1/release", body: () => null, told: () => "Everything was released",
});

export const askPause = () => ask({
  title: "Pause the watchdog?", text: "What is found is still told, and what is ours is still given back; nothing new is done until it is resumed.",
  verb: "Pause", method: "POST", path: "/api/v1/pause", body: () => null, told: () => "Paused",
});

export const askResume = () => ask({
  title: "Resume?", text: "What the policies want is done again, within the guards.",
  verb: "Resume", method: "POST", path: "/api/v1/resume", body: () => null,
  told: (answer) => (answer.paused ? `Still paused: ${answer.paused_because}` : "Resumed"),
});

const holdPath = (backend) => `/api/v1/backends/${encodeURIComponent(backend)}/hold`;

export const askHold = (backend) => ask({
  title: `Hold ${backend}?`, text: "Nothing is done at it until the hold ends; what is in force there stays as it is.", verb: "Hold", held: true,
  method: "POST", path: holdPath(backend), body: () => ({ reason: $("hold-reason").value.trim(), for_s: Number($("hold-for").value) }),
  told: (answer) => `${backend} is held until ${clock(answer.until)}`,
});

export const askUnhold = (backend) => ask({
  title: `End the hold on ${backend}?`, text: "The watchdog acts there again, within the guards.", verb: "End the hold",
  method: "DELETE", path: holdPath(backend), body: () => null, told: () => `The hold on ${backend} has ended`,
});

async function send(event) {
  event.preventDefault();
  const what = asked;
  if (!$("token-label").hidden) token = $("token").value;
  $("change-do").disabled = true;
  try {
    const answer = await call(what);
    const said = await answer.json();
    if (answer.status === 401) askToken();
    else if (!answer.ok) say($("change-error"), `Not done: ${detail(said)}`);
    else done(what, said);
  } catch (error) {
    say($("change-error"), error.name === "TimeoutError"
      ? `No answer within ${DEADLINE_MS / 1000} s: it may be done or not. See what is in force.` : `Not done: ${error.message}`);
  } finally {
    $("change-do").disabled = false;
  }
  afterwards();
}

function call({ method, path, body }) {
  const given = body();
  return fetch(path, {
    method, cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS), body: given === null ? undefined : JSON.stringify(given),
    headers: { ...(given === null ? {} : { "content-type": "application/json" }), ...(token ? { authorization: `Bearer ${token}` } : {}) },
  });
}

function askToken() {
  const first = $("token-label").hidden;
  say($("change-error"), first ? "The watchdog asks for its token." : "This token is not accepted.");
  token = null;
  $("token").value = "";
  $("token-label").hidden = false;
  $("token").focus();
}

function done(what, answer) {
  if (answer.failed) {
    const [first] = answer.kept;
    const why = first ? ` ${first.backend}: ${first.why}.` : " See the decisions.";
    say($("change-error"), `Not everything was released: ${plural(answer.failed, "change")} still in force.${why}`);
    return;
  }
  $("token").value = "";
  $("change").close();
  say($("told"), `${what.told(answer)}, at ${clock(Date.now() / 1000)}.`);
}
