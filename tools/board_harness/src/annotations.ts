// Runs a board's annotation queries and gives their events to the graphs. Own code, after what Grafana's data sources do with them:
// Prometheus: a series' samples above 0 are one event as long as they follow each other; Loki: a line is an event.
import { BehaviorSubject } from 'rxjs';
import { getDataSourceSrv } from '@grafana/runtime';
import { sceneGraph } from '@grafana/scenes';
import { asked } from './sources/common';

export interface Event { name: string; color: string; from_ms: number; to_ms: number; text: string }
export const events = new BehaviorSubject<Event[]>([]);

export async function runAnnotations(dashboard: any, scene: any) {
  const enabled = (dashboard.annotations?.list ?? []).filter((one: any) => one.enable && !one.builtIn && (one.expr ?? one.target?.expr));
  events.next((await Promise.all(enabled.map((one: any) => run(one, scene)))).flat());
}

async function run(annotation: any, scene: any): Promise<Event[]> {
  const from = asked.length;
  const range = sceneGraph.getTimeRange(scene).state.value;
  const target = { refId: 'Anno', expr: annotation.expr ?? annotation.target?.expr, ...annotation.target };
  try {
    const source: any = await getDataSourceSrv().get(annotation.datasource, {});
    const request = { range, intervalMs: (range.to.valueOf() - range.from.valueOf()) / 1000, targets: [target], scopedVars: { __sceneObject: { value: { valueOf: () => scene } } } };
    const { data } = await source.query(request);
    return data.flatMap((frame: any) => eventsOf(frame, annotation));
  } catch (e: any) {
    asked.push({ annotation: annotation.name, source: '', raw: target.expr, expr: target.expr, error: String(e.message) });
    return [];
  } finally {
    for (const entry of asked.slice(from)) if (entry.refId === 'Anno') entry.annotation = annotation.name;
  }
}

function eventsOf(frame: any, annotation: any): Event[] {
  const times = frame.fields.find((f: any) => f.type === 'time')?.values ?? [];
  const lines = frame.fields.find((f: any) => f.name === 'Line');
  const make = (from_ms: number, to_ms: number, text: string) => ({ name: annotation.name, color: annotation.iconColor ?? 'red', from_ms, to_ms, text });
  if (lines) return times.map((at: number, i: number) => make(at, at, lines.values[i]));
  const value = frame.fields.find((f: any) => f.type === 'number'), labels = value?.labels ?? {};
  const text = (annotation.titleFormat ?? Object.values(labels).join(' ')).replace(/\{\{\s*(.+?)\s*\}\}/g, (_: any, name: string) => labels[name] ?? '');
  const found: Event[] = [];
  let open: Event | undefined;
  times.forEach((at: number, i: number) => {
    if (!(value.values[i] > 0)) { open = undefined; return; }
    if (open) open.to_ms = at;
    else found.push((open = make(at, at, text)));
  });
  return found;
}
