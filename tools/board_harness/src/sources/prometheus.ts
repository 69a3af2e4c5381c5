// A thin Prometheus data source over its HTTP API. Own code (@grafana/prometheus is AGPL): range, instant, table, heatmap, exemplars, label_values.
import * as gd from '@grafana/data';
import { RuntimeDataSource } from '@grafana/scenes';
import { ask, asked, each, escaped, interpolate, panelOf, sceneOf, type Asked } from './common';

const MOST_POINTS = 11_000;

export class PrometheusSource extends RuntimeDataSource<any> {
  type = 'prometheus';
  /** `scrape_s` is jsonData.timeInterval: without it `$__rate_interval` is wrong. */
  constructor(uid: string, private base: string, private scrape_s: number) { super('prometheus', uid); (this as any).name = uid; }

  api = async (path: string, params: Record<string, string>) => (await ask(`${this.base}/api/v1/${path}?${new URLSearchParams(params)}`)).data;

  async query(request: gd.DataQueryRequest<any>): Promise<any> {
    const tables = request.targets.filter((target: any) => target.format === 'table').length;
    return each(request.targets, (target) => this.one(request, target, tables));
  }

  private async one(request: gd.DataQueryRequest<any>, target: any, tables: number): Promise<any[]> {
    const scene = sceneOf(request.scopedVars);
    const from_s = request.range.from.valueOf() / 1000, to_s = request.range.to.valueOf() / 1000;
    const asked_s = target.interval ? gd.rangeUtil.intervalToMs(interpolate(scene, target.interval, request.scopedVars)) / 1000 : 0; // "min step"
    const least = Math.max(request.intervalMs / 1000, this.scrape_s, asked_s, (to_s - from_s) / MOST_POINTS);
    const step_s = Math.max(1, Math.ceil(least)) * (target.intervalFactor ?? 1);
    const expr = interpolate(scene, target.expr, this.scoped(request.scopedVars, step_s, to_s - from_s), escaped);
    const entry: Asked = { panel: panelOf(scene), source: 'prometheus', refId: target.refId, raw: target.expr, expr, step_s, instant: !!target.instant };
    asked.push(entry);
    try {
      const found = target.instant
        ? await this.api('query', { query: expr, time: String(to_s) })
        : await this.api('query_range', { query: expr, start: String(Math.floor(from_s / step_s) * step_s), end: String(to_s), step: String(step_s) });
      const result = found.resultType === 'scalar' ? [{ metric: {}, value: found.result }] : found.result;
      entry.series = result.length;
      entry.rows = result.reduce((sum: number, s: any) => sum + (s.values ?? [s.value]).filter((v: any) => Number.isFinite(Number(v[1]))).length, 0);
      const frames = framesOf(result, target, step_s, tables);
      if (target.exemplar && !target.instant) frames.push(...(await this.exemplars(expr, target, from_s, to_s, entry)));
      return frames;
    } catch (e: any) {
      entry.error = String(e.message);
      throw e;
    }
  }

  private scoped(given: any, step_s: number, range_s: number): any {
    const rate_s = Math.max(step_s + this.scrape_s, 4 * this.scrape_s), whole_s = Math.round(range_s);
    return {
      ...given, __interval: { value: `${step_s}s` }, __interval_ms: { value: step_s * 1000 }, __rate_interval: { value: `${rate_s}s` },
      __range: { value: `${whole_s}s` }, __range_s: { value: whole_s }, __range_ms: { value: whole_s * 1000 },
    };
  }

  private async exemplars(expr: string, target: any, from_s: number, to_s: number, entry: Asked): Promise<any[]> {
    const found = await this.api('query_exemplars', { query: expr, start: String(from_s), end: String(to_s) });
    const flat = found.flatMap((s: any) => s.exemplars.map((e: any) => ({ at: e.timestamp * 1000, value: number(e.value), labels: { ...s.seriesLabels, ...e.labels } })));
    flat.sort((a: any, b: any) => a.at - b.at);
    entry.exemplars = flat.length;
    if (!flat.length) return [];
    const names = [...new Set(flat.flatMap((e: any) => Object.keys(e.labels)))] as string[];
    return [gd.toDataFrame({
      refId: target.refId, name: 'exemplar', meta: { dataTopic: gd.DataTopic.Annotations, custom: { resultType: 'exemplar' } },
      fields: [
        { name: 'Time', type: gd.FieldType.time, values: flat.map((e: any) => e.at) },
        { name: 'Value', type: gd.FieldType.number, values: flat.map((e: any) => e.value) },
        ...names.map((name) => ({ name, type: gd.FieldType.string, values: flat.map((e: any) => e.labels[name] ?? '') })),
      ],
    })];
  }

  async metricFindQuery(query: any, options: any): Promise<any[]> {
    const raw = typeof query === 'string' ? query : query?.query ?? '';
    const expr = interpolate(sceneOf(options?.scopedVars), raw, options?.scopedVars, escaped).trim();
    const entry: Asked = { variable: raw, source: 'prometheus', raw, expr };
    asked.push(entry);
    const values = /^label_values\((?:(.+),\s*)?([a-zA-Z_]\w*)\)$/.exec(expr);
    try {
      if (!values) throw new Error(`${expr}: the harness knows label_values(metric, label) alone`);
      const found = await this.api(`label/${values[2]}/values`, values[1] ? { 'match[]': values[1] } : {});
      entry.series = found.length;
      return found.map((text: string) => ({ text }));
    } catch (e: any) { entry.error = String(e.message); throw e; }
  }
}

const number = (text: string) => (text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

function framesOf(result: any[], target: any, step_s: number, tables: number): any[] {
  if (target.format === 'table') return [tableFrame(result, target, tables)];
  if (target.format === 'heatmap') return heatmapFrames(result, target, step_s);
  return result.map((series) => seriesFrame(series, target, step_s));
}

/** The legend: a format's text; for `__auto` nothing where there are labels, so that Grafana finds the one that differs; else the series' full name. */
function legend(metric: any, target: any): string | undefined {
  const { __name__ = '', ...labels } = metric;
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${value}"`).join(', ');
  if (target.legendFormat === '__auto') return pairs || __name__ ? undefined : target.expr;
  if (target.legendFormat) return target.legendFormat.replace(/\{\{\s*(.+?)\s*\}\}/g, (_: any, name: string) => metric[name] ?? '');
  return __name__ || pairs ? `${__name__}${pairs && `{${pairs}}`}` : target.expr;
}

function seriesFrame(series: any, target: any, step_s: number) {
  let values = series.values ?? [series.value];
  if (series.values && values.length > 1) { // Missing steps become nulls, so that gaps show.
    const by = new Map(values.map((v: any) => [v[0], v[1]]));
    values = [];
    for (let at = series.values[0][0]; at <= series.values.at(-1)[0]; at += step_s) values.push([at, by.get(at) ?? null]);
  }
  const name = legend(series.metric, target), { __name__, ...labels } = series.metric;
  return gd.toDataFrame({ refId: target.refId, name, meta: { type: 'timeseries-multi' as any }, fields: [
    { name: 'Time', type: gd.FieldType.time, values: values.map((v: any) => v[0] * 1000), config: { interval: step_s * 1000 } },
    { name: __name__ ?? 'Value', type: gd.FieldType.number, labels, values: values.map((v: any) => (v[1] === null ? null : number(v[1]))), config: name ? { displayNameFromDS: name } : {} },
  ] });
}

function tableFrame(result: any[], target: any, tables: number) {
  const names = [...new Set(result.flatMap((r) => Object.keys(r.metric)))].sort();
  const rows = result.flatMap((r) => (r.values ?? [r.value]).map((v: any) => ({ metric: r.metric, at: v[0] * 1000, value: number(v[1]) })));
  return gd.toDataFrame({ refId: target.refId, fields: [
    { name: 'Time', type: gd.FieldType.time, values: rows.map((r) => r.at) },
    ...names.map((name) => ({ name, type: gd.FieldType.string, values: rows.map((r) => r.metric[name] ?? '') })),
    { name: tables > 1 ? `Value #${target.refId}` : 'Value', type: gd.FieldType.number, values: rows.map((r) => r.value) },
  ] });
}

/** Cumulative `le` series become one frame with the counts of each bucket; other series one row each. */
function heatmapFrames(result: any[], target: any, step_s: number) {
  const cumulative = result.some((r) => r.metric.le !== undefined);
  const rows = cumulative ? result.filter((r) => r.metric.le !== undefined).sort((a, b) => number(a.metric.le) - number(b.metric.le)) : result;
  if (!rows.length) return [];
  const times = [...new Set(rows.flatMap((r) => r.values.map((v: any) => v[0])))].sort((a: any, b: any) => a - b) as number[];
  const grid = rows.map((r) => { const by = new Map<number, string>(r.values); return times.map((at) => (by.has(at) ? number(by.get(at)!) : null)); });
  const count = (i: number, j: number) => (grid[i][j] == null ? null : cumulative ? Math.max(0, grid[i][j]! - (i ? grid[i - 1][j] ?? 0 : 0)) : grid[i][j]);
  return [gd.toDataFrame({ refId: target.refId, meta: { type: gd.DataFrameType.HeatmapRows }, fields: [
    { name: 'Time', type: gd.FieldType.time, values: times.map((at) => at * 1000), config: { interval: step_s * 1000 } },
    ...rows.map((r, i) => ({ name: cumulative ? r.metric.le : legend(r.metric, target) ?? Object.values(r.metric).join(' '), type: gd.FieldType.number, labels: r.metric, values: times.map((_, j) => count(i, j)) })),
  ] })];
}
