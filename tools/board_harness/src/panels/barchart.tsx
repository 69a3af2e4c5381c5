// Bar charts, drawn as SVG: the first text or time column names the bars, each number column is a series. Own code.
import React from 'react';
import * as gd from '@grafana/data';
import { useTheme2 } from '@grafana/ui';
import { Legend, NoData, noValue, numeric, seriesColor, text, ticks, title, type Props } from './common';

const AXIS = 22, LEGEND = 24, LETTER = 6.6;

/** The number of a part of a bar, in it, where it has room. */
const Inside = ({ box, words }: { box: { x: number; y: number; width: number; height: number }; words: string }) => (box.width < LETTER * words.length + 4 || box.height < 12 ? null : (
  <text x={box.x + box.width / 2} y={box.y + box.height / 2 + 4} textAnchor="middle" fontSize={11} fill="#ffffff">{words}</text>
));

export function BarChart(props: Props) {
  const theme = useTheme2();
  const frame = props.data.series.find((one) => one.length && numeric(one).length);
  if (!frame) return <NoData text={noValue(props)} />;
  const names = frame.fields.find((f) => f.name === props.options.xField || title(f, frame, [frame]) === props.options.xField) ?? frame.fields.find((f) => f.type === gd.FieldType.string) ?? frame.fields.find((f) => f.type === gd.FieldType.time);
  const series = numeric(frame).filter((field) => field !== names);
  const labels = Array.from({ length: frame.length }, (_, i) => (names ? text(names, names.values[i]) : String(i + 1)));
  const stacked = ['normal', 'percent'].includes(props.options.stacking);
  const value = (field: gd.Field, i: number) => (Number.isFinite(field.values[i]) ? field.values[i] : 0);
  const totals = labels.map((_, i) => (stacked ? series.reduce((sum, f) => sum + value(f, i), 0) : Math.max(...series.map((f) => value(f, i)))));
  const most = series[0].config.max ?? Math.max(1e-9, ...totals) * 1.1; // room for the number on top
  const showLegend = props.options.legend?.showLegend !== false && series.length > 1;
  const height = props.height - (showLegend ? LEGEND : 0);
  const upright = props.options.orientation === 'vertical' || (props.options.orientation !== 'horizontal' && props.width > props.height * 2 && labels.length < 12);
  const left = upright ? 52 : Math.min(props.width / 2.5, 12 + LETTER * Math.max(...labels.map((l) => l.length)));
  const length = upright ? height - AXIS : props.width - left - 56, slot = (upright ? props.width - left : height) / labels.length;
  const shade = (field: gd.Field, v: number) => (field.config.color?.mode === 'thresholds' ? field.display?.(v).color : seriesColor(field, theme)) ?? '#8e8e8e';
  const bars = labels.flatMap((_, i) => {
    let before = 0;
    return series.map((field, k) => {
      const v = value(field, i), long = (v / most) * length, thick = (slot * 0.7) / (stacked ? 1 : series.length);
      const across = i * slot + slot * 0.15 + (stacked ? 0 : k * thick), along = stacked ? before : 0;
      before += long;
      const box = upright ? { x: left + across, y: length - along - long, width: thick, height: long } : { x: left + along, y: across, width: long, height: thick };
      return <g key={`${i}-${k}`}><rect {...box} fill={shade(field, v)}><title>{`${labels[i]} ${title(field, frame, [frame])}: ${text(field, v)}`}</title></rect>
        {props.options.showValue !== 'never' && v > 0 && (stacked ? <Inside box={box} words={text(field, v)} /> : <text x={upright ? box.x + thick / 2 : box.x + long + 4} y={upright ? box.y - 3 : box.y + thick / 2 + 4} textAnchor={upright ? 'middle' : 'start'} fontSize={11} fill="#ccccdc">{text(field, v)}</text>)}</g>;
    });
  });
  return <div><svg data-barchart width={props.width} height={height}>
    {upright && ticks(0, most, 4).map((at) => <g key={at}><line x1={left} x2={props.width} y1={length - (at / most) * length} y2={length - (at / most) * length} stroke="#2c2e33" /><text x={left - 5} y={length - (at / most) * length + 4} fontSize={11} textAnchor="end" fill="#9a9aa7">{text(series[0], at)}</text></g>)}
    {labels.map((label, i) => <text key={i} x={upright ? left + (i + 0.5) * slot : left - 6} y={upright ? height - 6 : (i + 0.5) * slot + 4} textAnchor={upright ? 'middle' : 'end'} fontSize={12} fill="#ccccdc">{label}</text>)}
    {bars}
  </svg>{showLegend && <Legend items={series.map((field) => ({ label: title(field, frame, [frame]), color: seriesColor(field, theme) ?? '#8e8e8e' }))} />}</div>;
}
