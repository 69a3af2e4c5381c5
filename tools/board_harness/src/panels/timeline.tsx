// State timeline, drawn as SVG: a band a field, equal neighbours merged. Own code.
import React from 'react';
import * as gd from '@grafana/data';
import { useTheme2 } from '@grafana/ui';
import { NoData, TimeAxis, color, noValue, text, timed, title, type Props } from './common';

const AXIS = 20, LETTER = 6.6, MOST_OF_WIDTH = 0.45;

export function StateTimeline(props: Props) {
  const theme = useTheme2();
  const frames = props.data.series.filter((frame) => frame.length && timed(frame));
  const rows = frames.flatMap((frame) => frame.fields.filter((field) => field.type !== gd.FieldType.time && !field.config.custom?.hideFrom?.viz).map((field) => ({ name: title(field, frame, frames), bands: bands(field, timed(frame)!) })));
  if (!rows.length) return <NoData text={noValue(props)} />;
  const from = props.timeRange.from.valueOf(), to = props.timeRange.to.valueOf();
  const left = Math.min(props.width * MOST_OF_WIDTH, 12 + LETTER * Math.max(...rows.map((row) => row.name.length))), width = props.width - left, height = (props.height - AXIS) / rows.length;
  const x = (at: number) => left + ((Math.max(from, Math.min(to, at)) - from) / (to - from)) * width;
  const thick = height * (props.options.rowHeight ?? 0.9);
  return <svg data-state-timeline width={props.width} height={props.height}>
    {rows.map((row, i) => <g key={i}>
      <text x={left - 6} y={(i + 0.5) * height + 4} fontSize={12} textAnchor="end" fill={theme.colors.text.primary}>{cut(row.name, left)}</text>
      {row.bands.map((band, k) => {
        const wide = x(band.to) - x(band.from), fits = props.options.showValue !== 'never' && wide > LETTER * band.text.length + 6 && thick > 12;
        return <g key={k} data-band={band.text}>
          <rect x={x(band.from)} y={i * height + (height - thick) / 2} width={Math.max(1, wide)} height={thick} fill={band.color}><title>{`${row.name}: ${band.text}`}</title></rect>
          {fits && <text x={x(band.from) + 5} y={(i + 0.5) * height + 4} fontSize={12} fill={theme.colors.getContrastText(band.color)}>{band.text}</text>}
        </g>;
      })}
    </g>)}
    <TimeAxis range={props.timeRange} left={left} width={width} y={props.height - 5} />
  </svg>;
}

const cut = (name: string, width: number) => (name.length * LETTER <= width - 6 ? name : `${name.slice(0, Math.max(1, Math.floor(width / LETTER) - 2))}…`);

function bands(field: gd.Field, times: gd.Field) {
  const found: { from: number; to: number; text: string; color: string; value: any }[] = [];
  const step = times.config.interval ?? 0;
  field.values.forEach((value: any, i: number) => {
    const at = times.values[i], last = found.at(-1);
    if (value === null || value === undefined) return;
    const until = times.values[i + 1] ?? at + step;
    if (last && last.value === value && last.to >= at) last.to = until;
    else found.push({ from: at, to: until, text: text(field, value), color: color(field, value), value });
  });
  return found;
}
