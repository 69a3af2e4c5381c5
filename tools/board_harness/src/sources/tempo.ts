// A thin Tempo data source over its HTTP API: a TraceQL search as a table, a trace by its id. Own code; the frames have the
// columns, names and types that Grafana's own Tempo data source gives, because transformations and overrides go by these.
import * as gd from '@grafana/data';
import { RuntimeDataSource } from '@grafana/scenes';
import { VariableFormatID } from '@grafana/schema';
import { ask, asked, each, interpolate, panelOf, sceneOf, type Asked } from './common';

const HEX_ONLY = /^[0-9a-fA-F]*$/;
const DEFAULT_LIMIT = 20, DEFAULT_SPANS = 3;

export class TempoSource extends RuntimeDataSource<any> {
  type = 'tempo';
  constructor(uid: string, private base: string) { super('tempo', uid); (this as any).name = uid; }

  async query(request: gd.DataQueryRequest<any>): Promise<any> {
    const scene = sceneOf(request.scopedVars);
    return each(request.targets, async (target) => {
      const expr = interpolate(scene, target.query ?? '', request.scopedVars, VariableFormatID.Pipe).trim();
      const entry: Asked = { panel: panelOf(scene), source: 'tempo', refId: target.refId, raw: target.query ?? '', expr };
      asked.push(entry);
      try {
        if (target.queryType && !['traceql', 'traceId'].includes(target.queryType)) throw new Error(`queryType ${target.queryType}: the harness knows traceql and traceId`);
        if (HEX_ONLY.test(expr)) return expr ? await this.trace(expr, target, entry) : [];
        return await this.search(expr, target, request.range, entry);
      } catch (e: any) { entry.error = String(e.message); throw e; }
    });
  }

  private async trace(id: string, target: any, entry: Asked) {
    const found = await ask(`${this.base}/api/v2/traces/${id}`);
    const frame = traceFrame(found.trace.resourceSpans ?? [], target.refId);
    entry.rows = frame.length;
    entry.series = 1;
    return [frame];
  }

  private async search(q: string, target: any, range: gd.TimeRange, entry: Asked) {
    const params = {
      q, limit: String(target.limit ?? DEFAULT_LIMIT), spss: String(target.spss ?? DEFAULT_SPANS),
      start: String(Math.floor(range.from.valueOf() / 1000)), end: String(Math.ceil(range.to.valueOf() / 1000)),
    };
    const { traces = [] } = await ask(`${this.base}/api/search?${new URLSearchParams(params)}`);
    traces.sort((a: any, b: any) => Number(b.startTimeUnixNano) - Number(a.startTimeUnixNano)); // the newest first
    const frame = target.tableType === 'spans' ? spansFrame(traces, target.refId) : tracesFrame(traces, target.refId);
    entry.rows = frame.length;
    entry.series = frame.length ? 1 : 0;
    return frame.length ? [frame] : [];
  }
}

const shown = (name: string, type: gd.FieldType, title: string | undefined, values: any[], more: any = {}) => ({ name, type, values, config: { ...(title ? { displayNameFromDS: title } : {}), ...more } });
/** How older and newer tables are told to leave out a column, which links can read all the same. */
const HIDDEN = { custom: { hidden: true, hideFrom: { viz: true, legend: true, tooltip: true } } };
const ms = (nanos: string) => Number(nanos) / 1e6;

function tracesFrame(traces: any[], refId: string) {
  return gd.toDataFrame({ name: 'Traces', refId, meta: { preferredVisualisationType: 'table' }, fields: [
    shown('traceID', gd.FieldType.string, 'Trace ID', traces.map((t) => t.traceID), { unit: 'string' }),
    shown('startTime', gd.FieldType.time, 'Start time', traces.map((t) => ms(t.startTimeUnixNano))),
    shown('traceService', gd.FieldType.string, 'Service', traces.map((t) => t.rootServiceName ?? '')),
    shown('traceName', gd.FieldType.string, 'Name', traces.map((t) => t.rootTraceName ?? '')),
    shown('traceDuration', gd.FieldType.number, 'Duration', traces.map((t) => t.durationMs), { unit: 'ms' }),
  ] });
}

/** Attributes are columns of text, whatever they hold: a number among them is a number in a column of text, as in Grafana. */
function spansFrame(traces: any[], refId: string) {
  const rows = traces.flatMap((trace) => (trace.spanSets ?? []).flatMap((set: any) => set.spans.map((span: any) => ({ trace, span, attributes: Object.fromEntries((span.attributes ?? []).map((a: any) => [a.key, value(a.value)])) }))));
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.attributes)))].sort((a, b) => a.localeCompare(b));
  const named = rows.some((row) => row.span.name);
  return gd.toDataFrame({ name: 'Spans', refId, meta: { preferredVisualisationType: 'table' }, fields: [
    shown('traceIdHidden', gd.FieldType.string, undefined, rows.map((r) => r.trace.traceID), HIDDEN),
    shown('traceService', gd.FieldType.string, 'Trace Service', rows.map((r) => r.trace.rootServiceName ?? '')),
    shown('traceName', gd.FieldType.string, 'Trace Name', rows.map((r) => r.trace.rootTraceName ?? '')),
    shown('spanID', gd.FieldType.string, 'Span ID', rows.map((r) => r.span.spanID), { unit: 'string' }),
    shown('time', gd.FieldType.time, 'Start time', rows.map((r) => ms(r.span.startTimeUnixNano))),
    shown('name', gd.FieldType.string, 'Name', rows.map((r) => r.span.name), named ? {} : HIDDEN),
    ...names.map((name) => shown(name, gd.FieldType.string, name, rows.map((r) => r.attributes[name]))),
    shown('duration', gd.FieldType.number, 'Duration', rows.map((r) => Number(r.span.durationNanos)), { unit: 'ns' }),
  ] });
}

const value = (any: any) => any.stringValue ?? any.intValue ?? any.doubleValue ?? any.boolValue;
const tags = (attributes: any[] = []) => attributes.map((a) => ({ key: a.key, value: value(a.value) }));
/** Ids come in base64, as protobuf's JSON has bytes. */
const hex = (id = '') => (/^[0-9a-f]{16}$|^[0-9a-f]{32}$/.test(id) ? id : [...atob(id)].map((c) => c.charCodeAt(0).toString(16).padStart(2, '0')).join(''));

function traceFrame(resources: any[], refId: string) {
  const spans = resources.flatMap((resource) => (resource.scopeSpans ?? []).flatMap((scope: any) => (scope.spans ?? []).map((span: any) => ({ span, service: tags(resource.resource?.attributes) }))));
  const of = (name: string, type: gd.FieldType, values: any[]) => ({ name, type, values });
  const status = (span: any) => ({ STATUS_CODE_OK: 1, STATUS_CODE_ERROR: 2 })[span.status?.code as string] ?? 0;
  return gd.toDataFrame({ name: 'Trace', refId, meta: { preferredVisualisationType: 'trace', custom: { traceFormat: 'otlp' } }, fields: [
    of('traceID', gd.FieldType.string, spans.map((s) => hex(s.span.traceId))),
    of('spanID', gd.FieldType.string, spans.map((s) => hex(s.span.spanId))),
    of('parentSpanID', gd.FieldType.string, spans.map((s) => hex(s.span.parentSpanId))),
    of('operationName', gd.FieldType.string, spans.map((s) => s.span.name)),
    of('serviceName', gd.FieldType.string, spans.map((s) => s.service.find((t) => t.key === 'service.name')?.value ?? '')),
    of('kind', gd.FieldType.string, spans.map((s) => String(s.span.kind ?? '').replace('SPAN_KIND_', '').toLowerCase())),
    of('statusCode', gd.FieldType.number, spans.map((s) => status(s.span))),
    of('statusMessage', gd.FieldType.string, spans.map((s) => s.span.status?.message ?? '')),
    of('serviceTags', gd.FieldType.other, spans.map((s) => s.service)),
    of('startTime', gd.FieldType.number, spans.map((s) => ms(s.span.startTimeUnixNano))),
    of('duration', gd.FieldType.number, spans.map((s) => ms(s.span.endTimeUnixNano) - ms(s.span.startTimeUnixNano))),
    of('tags', gd.FieldType.other, spans.map((s) => tags(s.span.attributes))),
  ] });
}
