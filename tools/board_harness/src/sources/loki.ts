// A thin Loki data source over its HTTP API: lines as one logs frame, metric queries as series. Own code; the logs frame has the
// fields of Grafana's own Loki data source: labels (all kinds together), Time, Line, tsNs, labelTypes, id.
import * as gd from '@grafana/data';
import { RuntimeDataSource } from '@grafana/scenes';
import { config, destination } from '../config';
import { ask, asked, each, escaped, interpolate, panelOf, sceneOf, type Asked } from './common';

const MOST_LINES = 1000; // Grafana's own, where a data source says nothing else
const CATEGORIZED = { 'X-Loki-Response-Encoding-Flags': 'categorize-labels' };
const KINDS: Record<string, string> = { structuredMetadata: 'S', parsed: 'P' };

export class LokiSource extends RuntimeDataSource<any> {
  type = 'loki';
  constructor(uid: string, private base: string) { super('loki', uid); (this as any).name = uid; }

  async query(request: gd.DataQueryRequest<any>): Promise<any> {
    const scene = sceneOf(request.scopedVars);
    const from_ms = request.range.from.valueOf(), to_ms = request.range.to.valueOf();
    const step_s = Math.max(1, Math.ceil(request.intervalMs / 1000)), range_s = Math.max(1, Math.round((to_ms - from_ms) / 1000));
    return each(request.targets, async (target) => {
      const instant = target.queryType === 'instant';
      const scoped: any = { ...request.scopedVars, __interval: { value: `${step_s}s` }, __range: { value: `${range_s}s` }, __range_s: { value: range_s }, __auto: { value: `${instant ? range_s : step_s}s` } };
      const expr = interpolate(scene, target.expr ?? '', scoped, escaped);
      const entry: Asked = { panel: panelOf(scene), source: 'loki', refId: target.refId, raw: target.expr ?? '', expr, instant };
      asked.push(entry);
      try {
        const range = { start: `${from_ms}000000`, end: `${to_ms}000000`, step: `${step_s}s`, limit: String(target.maxLines ?? MOST_LINES), direction: target.direction ?? 'backward' };
        const path = instant ? 'query' : 'query_range';
        const params = instant ? { query: expr, time: `${to_ms}000000` } : { query: expr, ...range };
        const { data } = await ask(`${this.base}/loki/api/v1/${path}?${new URLSearchParams(params)}`, CATEGORIZED);
        const frames = data.resultType === 'streams' ? linesFrame(data.result, target.refId) : data.result.map((series: any) => seriesFrame(series, target));
        entry.series = data.result.length;
        entry.rows = frames.reduce((sum: number, frame: any) => sum + frame.length, 0);
        return frames;
      } catch (e: any) { entry.error = String(e.message); throw e; }
    });
  }
}

function linesFrame(streams: any[], refId: string) {
  const lines = streams.flatMap(({ stream, values }) => values.map(([at, line, beside = {}]: any) => ({ at, line, labels: { ...stream, ...beside.structuredMetadata, ...beside.parsed }, kinds: kindsOf(stream, beside) })));
  lines.sort((a: any, b: any) => (BigInt(a.at) < BigInt(b.at) ? 1 : -1)); // as asked: the newest first
  if (!lines.length) return [];
  return [gd.toDataFrame({ refId, meta: { type: gd.DataFrameType.LogLines, preferredVisualisationType: 'logs', custom: { frameType: 'LabeledTimeValues' } }, fields: [
    { name: 'labels', type: gd.FieldType.other, values: lines.map((l: any) => l.labels) },
    { name: 'Time', type: gd.FieldType.time, values: lines.map((l: any) => Number(l.at) / 1e6) },
    { name: 'Line', type: gd.FieldType.string, values: lines.map((l: any) => l.line) },
    { name: 'tsNs', type: gd.FieldType.string, values: lines.map((l: any) => l.at) },
    { name: 'labelTypes', type: gd.FieldType.other, values: lines.map((l: any) => l.kinds) },
    ...derivedFields(lines),
    { name: 'id', type: gd.FieldType.string, values: lines.map((l: any, i: number) => `${l.at}_${i}`) },
  ] })];
}

/** The data source's derived fields, as columns with a link. */
const derivedFields = (lines: any[]) => config.derived.map((one) => ({
  name: one.name, type: gd.FieldType.string, config: { links: [{ title: one.urlDisplayLabel ?? one.name, url: destination(one) }] },
  values: lines.map((l) => (one.matcherType === 'label' ? Object.entries<string>(l.labels).find(([name]) => new RegExp(`^(${one.matcherRegex})$`).test(name))?.[1] : new RegExp(one.matcherRegex).exec(l.line)?.[1]) ?? null),
}));

function kindsOf(stream: any, beside: any) {
  const found: Record<string, string> = Object.fromEntries(Object.keys(stream).map((name) => [name, 'I']));
  for (const [part, letter] of Object.entries(KINDS)) for (const name of Object.keys(beside[part] ?? {})) found[name] = letter;
  return found;
}

function seriesFrame(series: any, target: any) {
  const values = series.values ?? [series.value];
  const format = target.legendFormat && target.legendFormat !== '__auto' ? target.legendFormat : undefined;
  const name = format?.replace(/\{\{\s*(.+?)\s*\}\}/g, (_: any, label: string) => series.metric[label] ?? '');
  return gd.toDataFrame({ refId: target.refId, name, fields: [
    { name: 'Time', type: gd.FieldType.time, values: values.map((v: any) => v[0] * 1000) },
    { name: 'Value', type: gd.FieldType.number, labels: series.metric, values: values.map((v: any) => Number(v[1])), config: name ? { displayNameFromDS: name } : {} },
  ] });
}
