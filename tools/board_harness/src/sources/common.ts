// What the three data sources share: the log of queries that the report gives out, interpolation, and the panel a query is of.
import { sceneGraph } from '@grafana/scenes';

export interface Asked {
  panel?: string; variable?: string; annotation?: string; source: string; refId?: string;
  raw: string; expr: string; series?: number; rows?: number; exemplars?: number; error?: string; instant?: boolean; step_s?: number;
}
/** Every query that was asked, in order. */
export const asked: Asked[] = [];

export const sceneOf = (scoped: any) => scoped?.__sceneObject?.value?.valueOf?.();
export function panelOf(scene: any): string | undefined {
  for (let at = scene; at; at = at.parent) if (at.state?.pluginId) return at.state.title;
  return undefined;
}
export const interpolate = (scene: any, text: string, scoped: any, format?: any) => (scene ? sceneGraph.interpolate(scene, text, scoped, format) : text);

const TRIES = 3, PAUSE_MS = 200;
/** Chromium drops every connection when an interface of the machine comes or goes (ERR_NETWORK_CHANGED); an answer, whatever it says, is final. */
async function fetched(url: string, headers: Record<string, string>, left = TRIES): Promise<Response> {
  try { return await fetch(url, { headers }); } catch (e) {
    if (left <= 1) throw e;
    await new Promise((go) => setTimeout(go, PAUSE_MS));
    return fetched(url, headers, left - 1);
  }
}

export async function ask(url: string, headers: Record<string, string> = {}): Promise<any> {
  const response = await fetched(url, headers);
  const text = await response.text();
  let document: any;
  try { document = JSON.parse(text); } catch { document = undefined; }
  if (document?.status === 'error') throw new Error(`${document.errorType}: ${document.error}`);
  if (!response.ok || document === undefined) throw new Error(`${response.status}: ${text.slice(0, 500)}`);
  return document;
}

/** Values of a variable in a PromQL or LogQL string: regular expressions for several values, plain text for one. */
export function escaped(value: any, variable: any): string {
  const one = variable.multi || variable.includeAll
    ? (text: string) => text.replace(/\\/g, '\\\\\\\\').replace(/[$^*{}\[\]+?.()|]/g, '\\\\$&')
    : (text: string) => text.replace(/\\/g, '\\\\').replace(/"/g, '\\"');
  if (!Array.isArray(value)) return one(String(value));
  return value.length === 1 ? one(value[0]) : `(${value.map(one).join('|')})`;
}

/** One answer of several targets: all frames, and the first error. */
export async function each(targets: any[], run: (target: any) => Promise<any[]>): Promise<any> {
  let error: any;
  const frames = await Promise.all(targets.map((target) => run(target).catch((e: any) => { error ??= { message: String(e?.message ?? e), refId: target.refId }; return []; })));
  return { data: frames.flat(), error };
}
