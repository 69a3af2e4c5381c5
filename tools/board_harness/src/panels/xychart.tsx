// Scatter plots, drawn as SVG: the mapping's columns, or the first number against the others. Own code.
import React from 'react';
import * as gd from '@grafana/data';
import { useTheme2 } from '@grafana/ui';
import { Legend, NoData, noValue, numeric, seriesColor, text, ticks, title, type Props } from './common';

const LEFT = 64, AXIS = 34, LEGEND = 24;

export function XYChart(props: Props) {
  const theme = useTheme2();
  const all = props.data.series.filter((frame) => frame.length);
  const groups = all.flatMap((frame, i) => pairs(frame, all, props.options.series?.[i] ?? props.options.series?.[0]).map((pair) => ({ ...pair, frame })));
  const points = groups.flatMap((g, k) => g.x.values.map((x: any, i: number) => ({ x, y: g.y.values[i], g, k })).filter((p: any) => Number.isFinite(p.x) && Number.isFinite(p.y)));
  if (!points.length) return <NoData text={noValue(props)} />;
  const height = props.height - LEGEND, first = groups[0];
  const across = scale(first.x, points.map((p: any) => p.x)), up = scale(first.y, points.map((p: any) => p.y));
  const x = (v: number) => LEFT + across.share(v) * (props.width - LEFT - 10), y = (v: number) => height - AXIS - up.share(v) * (height - AXIS - 8);
  const color = (k: number) => seriesColor(groups[k].y, theme) ?? '#8e8e8e';
  return <div><svg data-xychart width={props.width} height={height}>
    {across.ticks.map((v) => <g key={`x${v}`}><line x1={x(v)} x2={x(v)} y1={8} y2={height - AXIS} stroke="#2c2e33" /><text x={x(v)} y={height - AXIS + 14} fontSize={11} textAnchor="middle" fill="#9a9aa7">{text(first.x, v)}</text></g>)}
    {up.ticks.map((v) => <g key={`y${v}`}><line x1={LEFT} x2={props.width - 10} y1={y(v)} y2={y(v)} stroke="#2c2e33" /><text x={LEFT - 6} y={y(v) + 4} fontSize={11} textAnchor="end" fill="#9a9aa7">{text(first.y, v)}</text></g>)}
    <text x={(LEFT + props.width) / 2} y={height - 4} fontSize={12} textAnchor="middle" fill="#ccccdc">{title(first.x, first.frame, all)}</text>
    {points.map((p: any, i: number) => <circle key={i} cx={x(p.x)} cy={y(p.y)} r={(p.g.y.config.custom?.pointSize?.fixed ?? 5) / 1.5} fill={color(p.k)} fillOpacity={0.7}><title>{`${title(p.g.y, p.g.frame, all)}: ${text(p.g.x, p.x)}, ${text(p.g.y, p.y)}`}</title></circle>)}
  </svg><Legend items={groups.map((g, k) => ({ label: title(g.y, g.frame, all), color: color(k) }))} /></div>;
}

/** Where a value lies between an axis' ends, from 0 to 1, and its round numbers: whole powers of ten where it is logarithmic. */
function scale(field: gd.Field, values: number[]): { share: (v: number) => number; ticks: number[] } {
  const most = Math.max(...values);
  if (field.config.custom?.scaleDistribution?.type !== 'log') {
    const least = Math.min(0, ...values), end = most + (most - least) * 0.05 || 1;
    return { share: (v) => (v - least) / (end - least), ticks: ticks(least, end) };
  }
  const from = Math.floor(Math.log10(Math.min(...values.filter((v) => v > 0)))), to = Math.max(from + 1, Math.ceil(Math.log10(most)));
  return { share: (v) => (Math.log10(Math.max(v, 10 ** from)) - from) / (to - from), ticks: Array.from({ length: to - from + 1 }, (_, i) => 10 ** (from + i)) };
}

function pairs(frame: gd.DataFrame, all: gd.DataFrame[], mapping: any): { x: gd.Field; y: gd.Field }[] {
  const named = (matcher: any) => matcher && frame.fields.find((field) => gd.fieldMatchers.get(matcher.id).get(matcher.options)(field, frame, all));
  const numbers = numeric(frame), x = named(mapping?.x?.matcher) ?? numbers[0], y = named(mapping?.y?.matcher);
  if (!x) return [];
  return (y ? [y] : numbers.filter((field) => field !== x)).map((field) => ({ x, y: field }));
}
