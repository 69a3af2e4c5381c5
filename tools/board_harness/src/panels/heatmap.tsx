// Heatmaps, drawn as SVG: buckets or series as rows, time as columns. Own code.
import React from 'react';
import * as gd from '@grafana/data';
import { useTheme2 } from '@grafana/ui';
import { NoData, TimeAxis, noValue, numeric, timed, title, type Props } from './common';

const AXIS = 20, LINE = 13, VIRIDIS = ['#440154', '#482878', '#3e4989', '#31688e', '#26828e', '#1f9e89', '#35b779', '#6ece58', '#b5de2b', '#fde725'];

export function Heatmap(props: Props) {
  const theme = useTheme2();
  const frames = props.data.series.filter((frame) => frame.length && timed(frame));
  const rows = frames.flatMap((frame) => numeric(frame).map((field) => ({ field, times: timed(frame)!, name: frame.meta?.type === gd.DataFrameType.HeatmapRows ? field.name : title(field, frame, frames) })));
  if (!rows.length) return <NoData text={noValue(props)} />;
  const unit = props.options.yAxis?.unit, format = unit ? gd.getValueFormat(unit) : undefined;
  const label = (name: string) => (format && Number.isFinite(Number(name)) ? gd.formattedValueToString(format(Number(name))) : name);
  const left = Math.min(props.width / 3, 12 + 6.5 * Math.max(...rows.map((row) => label(row.name).length)));
  const from = props.timeRange.from.valueOf(), to = props.timeRange.to.valueOf(), width = props.width - left, height = (props.height - AXIS) / rows.length;
  const most = Math.max(1e-9, ...rows.flatMap((row) => row.field.values.filter(Number.isFinite)));
  const step = rows[0].times.config.interval ?? (rows[0].times.values[1] - rows[0].times.values[0] || 15_000);
  const shade = (value: number) => VIRIDIS[Math.min(VIRIDIS.length - 1, Math.floor((value / most) * VIRIDIS.length))];
  return <svg data-heatmap width={props.width} height={props.height}>
    {rows.map((row, i) => {
      const y = props.height - AXIS - (i + 1) * height;
      return <g key={i}>
        {i % Math.ceil(LINE / height) === 0 && <text x={left - 6} y={y + height / 2 + 4} fontSize={11} textAnchor="end" fill={theme.colors.text.secondary}>{label(row.name)}</text>}
        {row.field.values.map((value: any, j: number) => {
          const at = row.times.values[j];
          if (!Number.isFinite(value) || at < from || at > to || (value === 0 && most > 0)) return null;
          return <rect key={j} x={left + ((at - from) / (to - from)) * width} y={y + 0.5} width={Math.max(1, (step / (to - from)) * width)} height={Math.max(1, height - 1)} fill={shade(value)}><title>{`${row.name}: ${row.field.display ? gd.formattedValueToString(row.field.display(value)) : value}`}</title></rect>;
        })}
      </g>;
    })}
    <TimeAxis range={props.timeRange} left={left} width={width} y={props.height - 5} />
  </svg>;
}
