// Logs and traces, drawn as lists: Grafana's own views are its core's. Own code.
import React from 'react';
import * as gd from '@grafana/data';
import { NoData, noValue, timed, type Props } from './common';

const LEVELS: Record<string, string> = { fatal: '#e02f44', error: '#f2495c', warn: '#ff9830', info: '#73bf69', debug: '#5794f2', trace: '#8ab8ff', unknown: '#8e8e8e' };
const SPANS = ['#5794f2', '#b877d9', '#ff9830', '#73bf69', '#f2cc0c'];

export function Logs(props: Props) {
  const frame = props.data.series.find((one) => one.length && one.fields.some((f) => f.name === 'Line'));
  if (!frame) return <NoData text={noValue(props)} />;
  const field = (name: string) => frame.fields.find((f) => f.name === name);
  const times = timed(frame)!, lines = field('Line')!, labels = field('labels');
  const linked = frame.fields.filter((f) => f.config.links?.length);
  return <div data-logs style={{ fontFamily: 'monospace', fontSize: 12, overflow: 'auto', height: props.height }}>
    {Array.from({ length: frame.length }, (_, i) => {
      const found = labels?.values[i] ?? {};
      return <div key={i} data-log-line style={{ display: 'flex', flexWrap: 'wrap', columnGap: 8, padding: '1px 4px', borderLeft: `3px solid ${LEVELS[found.detected_level ?? 'unknown'] ?? LEVELS.unknown}` }}>
        {props.options.showTime !== false && <span style={{ opacity: 0.7, whiteSpace: 'nowrap' }}>{new Date(times.values[i]).toISOString().slice(0, 23).replace('T', ' ')}</span>}
        {props.options.showLabels && <span style={{ opacity: 0.7 }}>{Object.entries(found).map(([k, v]) => `${k}=${v}`).join(' ')}</span>}
        <span style={{ whiteSpace: props.options.wrapLogMessage ? 'pre-wrap' : 'pre', overflowWrap: 'anywhere', flex: '0 1 auto', maxWidth: props.width - 200 }}>{lines.values[i]}</span>
        {linked.filter((f) => f.values[i]).flatMap((f) => f.getLinks?.({ valueRowIndex: i }) ?? []).map((link, k) => <a key={k} data-datalink href={link.href} style={{ color: '#6e9fff' }}>{link.title}</a>)}
      </div>;
    })}
  </div>;
}

export function Traces(props: Props) {
  const frame = props.data.series.find((one) => one.length && one.fields.some((f) => f.name === 'spanID'));
  if (!frame) return <NoData text={noValue(props)} />;
  const rows = ordered(Array.from({ length: frame.length }, (_, i) => Object.fromEntries(frame.fields.map((f) => [f.name, f.values[i]]))) as any[]);
  const from = Math.min(...rows.map((r) => r.startTime)), whole = Math.max(...rows.map((r) => r.startTime + r.duration)) - from || 1;
  const time = (ms: number) => gd.formattedValueToString(gd.getValueFormat('ms')(ms));
  return <div data-trace={rows[0].traceID} style={{ overflow: 'auto', height: props.height, fontSize: 12 }}>
    <div style={{ padding: '2px 6px 8px', fontSize: 13 }}>{rows[0].serviceName}: {rows[0].operationName} <span style={{ fontFamily: 'monospace' }}>{rows[0].traceID}</span> · {new Date(from).toISOString().replace('T', ' ')} · {time(whole)} · {rows.length} spans</div>
    {rows.map((row, i) => <div key={row.spanID} data-span={row.operationName} style={{ display: 'flex', alignItems: 'center', height: 24 }}>
      <span style={{ width: '24%', paddingLeft: 6 + 14 * row.depth, whiteSpace: 'nowrap', overflow: 'hidden' }}>{row.statusCode === 2 ? '⚠ ' : ''}{row.operationName} <span style={{ opacity: 0.6 }}>{time(row.duration)}</span></span>
      <span style={{ position: 'relative', flex: 1, height: 14 }}><span style={{ position: 'absolute', left: `${((row.startTime - from) / whole) * 100}%`, width: `max(2px, ${(row.duration / whole) * 100}%)`, height: 14, background: SPANS[i % SPANS.length] }} /></span>
    </div>)}
    <div style={{ padding: 6, opacity: 0.8, fontFamily: 'monospace', fontSize: 11 }}>{(rows[0].tags ?? []).map((tag: any) => <span key={tag.key} style={{ marginRight: 12 }}>{tag.key}=<b>{String(tag.value)}</b></span>)}</div>
  </div>;
}

/** Parents before their children, each at its depth. */
function ordered(spans: any[]): any[] {
  const ids = new Set(spans.map((s) => s.spanID));
  const below = (parent: any, depth: number): any[] => spans.filter((s) => (parent ? s.parentSpanID === parent.spanID : !ids.has(s.parentSpanID))).sort((a, b) => a.startTime - b.startTime).flatMap((s) => [{ ...s, depth }, ...below(s, depth + 1)]);
  return below(undefined, 0);
}
