// Small pieces that several panels draw with.
import React from 'react';
import * as gd from '@grafana/data';

export type Props = gd.PanelProps<any>;

export const NoData = ({ text }: { text?: string }) => (
  <div data-no-data style={{ height: '100%', display: 'flex', alignItems: 'center', justifyContent: 'center', opacity: 0.7, fontSize: 14 }}>{text || 'No data'}</div>
);

export const noValue = (props: Props) => props.fieldConfig.defaults.noValue;
export const empty = (props: Props) => !props.data.series.some((frame) => frame.length > 0);
export const numeric = (frame: gd.DataFrame) => frame.fields.filter((field) => field.type === gd.FieldType.number && !field.config.custom?.hideFrom?.viz);
export const timed = (frame: gd.DataFrame) => frame.fields.find((field) => field.type === gd.FieldType.time);
export const title = (field: gd.Field, frame: gd.DataFrame, all: gd.DataFrame[]) => gd.getFieldDisplayName(field, frame, all);
export const text = (field: gd.Field, value: any) => (field.display ? gd.formattedValueToString(field.display(value)) : String(value));
export const color = (field: gd.Field, value: any) => field.display?.(value).color ?? '#8e8e8e';
/** A series' own colour, whatever its values are. */
export const seriesColor = (field: gd.Field, theme: gd.GrafanaTheme2) => gd.getFieldSeriesColor(field, theme).color;

export const Legend = ({ items }: { items: { label: string; color: string }[] }) => (
  <div style={{ display: 'flex', flexWrap: 'wrap', gap: '2px 12px', padding: '2px 6px', fontSize: 12 }}>
    {items.map((item) => <span key={item.label}><span style={{ display: 'inline-block', width: 12, height: 4, background: item.color, marginRight: 5, verticalAlign: 'middle' }} />{item.label}</span>)}
  </div>
);

/** Round numbers between two bounds, for an axis. */
export function ticks(least: number, most: number, count = 5): number[] {
  if (!(most > least)) return [least];
  const rough = (most - least) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough)!;
  const found: number[] = [];
  for (let at = Math.ceil(least / step) * step; at <= most + step * 1e-6; at += step) found.push(at);
  return found;
}

export const TimeAxis = ({ range, left, width, y }: { range: gd.TimeRange; left: number; width: number; y: number }) => {
  const from = range.from.valueOf(), to = range.to.valueOf(), count = Math.max(2, Math.floor(width / 110));
  return <>{Array.from({ length: count }, (_, i) => {
    const at = from + ((i + 0.5) / count) * (to - from);
    return <text key={i} x={left + ((i + 0.5) / count) * width} y={y} fontSize={11} textAnchor="middle" fill="#9a9aa7">{new Date(at).toISOString().slice(11, to - from < 1_200_000 ? 19 : 16)}</text>;
  })}</>;
};
