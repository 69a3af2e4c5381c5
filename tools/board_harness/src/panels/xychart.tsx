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
  const bounds = (name: 'x' | 'y') => { const found = points.map((p: any) => p[name]); const least = Math.min(0, ...found), most = Math.max(...found); return [least, most + (most - least) * 0.05 || 1]; };
  const [x0, x1] = bounds('x'), [y0, y1] = bounds('y'), height = props.height - LEGEND;
  const x = (v: number) => LEFT + ((v - x0) / (x1 - x0)) * (props.width - LEFT - 10), y = (v: number) => height - AXIS - ((v - y0) / (y1 - y0)) * (height - AXIS - 8);
  const first = groups[0], color = (k: number) => seriesColor(groups[k].y, theme) ?? '#8e8e8e';
  return <div><svg data-xychart width={props.width} height={height}>
    {ticks(x0, x1).map((v) => <g key={`x${v}`}><line x1={x(v)} x2={x(v)} y1={8} y2={height - AXIS} stroke="#2c2e33" /><text x={x(v)} y={height - AXIS + 14} fontSize={11} textAnchor="middle" fill="#9a9aa7">{text(first.x, v)}</text></g>)}
    {ticks(y0, y1).map((v) => <g key={`y${v}`}><line x1={LEFT} x2={props.width - 10} y1={y(v)} y2={y(v)} stroke="#2c2e33" /><text x={LEFT - 6} y={y(v) + 4} fontSize={11} textAnchor="end" fill="#9a9aa7">{text(first.y, v)}</text></g>)}
    <text x={(LEFT + props.width) / 2} y={height - 4} fontSize={12} textAnchor="middle" fill="#ccccdc">{title(first.x, first.frame, all)}</text>
    {points.map((p: any, i: number) => <circle key={i} cx={x(p.x)} cy={y(p.y)} r={(p.g.y.config.custom?.pointSize?.fixed ?? 5) / 1.5} fill={color(p.k)} fillOpacity={0.7}><title>{`${title(p.g.y, p.g.frame, all)}: ${text(p.g.x, p.x)}, ${text(p.g.y, p.y)}`}</title></circle>)}
  </svg><Legend items={groups.map((g, k) => ({ label: title(g.y, g.frame, all), color: color(k) }))} /></div>;
}

function pairs(frame: gd.DataFrame, all: gd.DataFrame[], mapping: any): { x: gd.Field; y: gd.Field }[] {
  const named = (matcher: any) => matcher && frame.fields.find((field) => gd.fieldMatchers.get(matcher.id).get(matcher.options)(field, frame, all));
  const numbers = numeric(frame), x = named(mapping?.x?.matcher) ?? numbers[0], y = named(mapping?.y?.matcher);
  if (!x) return [];
  return (y ? [y] : numbers.filter((field) => field !== x)).map((field) => ({ x, y: field }));
}
