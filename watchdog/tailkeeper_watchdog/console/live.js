// Where what is shown comes from: the watchdog's stream, a whole picture after each tick; and, wherever a stream cannot be had,
// asking every two seconds. A browser has six connections for all its pages: one that nobody sees holds no stream, and of those
// that are seen at once three do, so that answers have room.

import { detail } from "./words.js";

const PERIOD_MS = 2000;
const HIDDEN_MS = 15_000;
const DEADLINE_MS = 8000;
const SILENT_MS = 15_000; // three beats: then the stream is there only in name
const BACK_OFF_MS = [1000, 2000, 4000, 8000, 16_000, 30_000];
const PLACES = ["tailkeeper-stream-1", "tailkeeper-stream-2", "tailkeeper-stream-3"];
const PICTURE = ["/api/v1/fleet", "/api/v1/findings?open=true", "/api/v1/decisions?limit=50"];

export async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS) });
  if (answer.ok) return answer.json();
  const said = detail(await answer.json().catch(() => ({}))) || `${path} answered ${answer.status}`;
  throw Object.assign(new Error(said), { answered: true });
}

export async function askPicture() {
  const [fleet, findings, decisions] = await Promise.all(PICTURE.map(ask));
  return { fleet, findings, decisions };
}

// What gives the place back, or null where other pages have all of them. Without locks (plain http from elsewhere) all may stream.
async function takePlace() {
  if (!navigator.locks) return () => {};
  for (const name of PLACES) {
    const giveBack = await new Promise((tell) => {
      navigator.locks.request(name, { ifAvailable: true }, (lock) => (lock ? new Promise((free) => tell(free)) : tell(null)));
    });
    if (giveBack) return giveBack;
  }
  return null;
}

export const WITHIN = `within ${DEADLINE_MS / 1000} s`;

// `told` hears: picture(picture), beat(now), lost(error), way(streaming). `seldom` are questions that are asked every so often
// whatever the way: { path, every_ms, show, failed }.
export function follow(told, seldom) {
  const due = new Map(seldom.map((question) => [question, 0]));
  let stream = null;
  let giveBack = null; // the place that it has
  let wanted = null; // the attempt that goes on
  let streaming = false; // something has come through it
  let heard = 0;
  let failures = 0;
  let next = null; // when what is due is done again
  let again = null; // when a stream is tried again
  let running = null;

  function way(is) {
    if (is !== streaming) {
      streaming = is;
      told.way(is);
    }
  }

  function close() {
    clearTimeout(again);
    wanted = null;
    stream?.close();
    stream = null;
    giveBack?.();
    giveBack = null;
    way(false);
  }

  function hear(say) {
    return (event) => {
      heard = performance.now();
      failures = 0;
      way(true);
      say(JSON.parse(event.data));
    };
  }

  async function connect() {
    close();
    const mine = {};
    wanted = mine;
    const place = await takePlace();
    if (wanted !== mine) return place?.(); // closed meanwhile
    if (!place) return retry();
    giveBack = place;
    heard = performance.now();
    stream = new EventSource("/api/v1/stream");
    stream.addEventListener("picture", hear((picture) => told.picture(picture)));
    stream.addEventListener("beat", hear((beat) => told.beat(beat.now)));
    stream.addEventListener("trouble", hear((trouble) => told.lost(Object.assign(new Error(trouble.detail), { answered: true }))));
    stream.addEventListener("error", retry);
    return undefined;
  }

  // Later each time, and not all pages at once.
  function retry() {
    const wasStreaming = streaming;
    close();
    if (document.hidden) return;
    const wait = BACK_OFF_MS[Math.min(failures, BACK_OFF_MS.length - 1)];
    failures += 1;
    again = setTimeout(connect, wait * (0.5 + Math.random() / 2));
    if (wasStreaming) soon();
  }

  async function round() {
    if (stream && performance.now() - heard > SILENT_MS) retry();
    if (!streaming) await askNow();
    for (const question of seldom) if (performance.now() >= due.get(question)) await askSeldom(question);
    clearTimeout(next);
    next = setTimeout(soon, document.hidden ? HIDDEN_MS : PERIOD_MS);
  }

  async function askNow() {
    try {
      told.picture(await askPicture());
    } catch (error) {
      told.lost(error);
    }
  }

  async function askSeldom(question) {
    try {
      question.show(await ask(question.path));
      due.set(question, performance.now() + question.every_ms);
    } catch (error) {
      question.failed(error);
    }
  }

  function soon() {
    clearTimeout(next);
    running ||= round().finally(() => { running = null; });
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else connect();
    soon();
  });
  if (!document.hidden) connect();
  soon();
}
