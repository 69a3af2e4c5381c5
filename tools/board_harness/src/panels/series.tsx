// Time series on @grafana/ui's TimeSeries; exemplars and annotations are laid over the plot as elements that a test can find.
import React from 'react';
import { createPortal } from 'react-dom';
import * as gd from '@grafana/data';
import { TimeSeries, useTheme2, type UPlotConfigBuilder } from '@grafana/ui';
import { events, type Event } from '../annotations';
import { config, destination } from '../config';
import { NoData, noValue, type Props } from './common';

const MOST_MARKS = 120;

export function Series(props: Props) {
  const frames = React.useMemo(() => props.data.series.filter((frame) => frame.length && frame.fields.some((f) => f.type === gd.FieldType.time) && frame.fields.some((f) => f.type === gd.FieldType.number)), [props.data.series]);
  gd.cacheFieldDisplayNames(frames); // colours go by it, and the plot and its legend must agree
  const exemplars = (props.data.annotations ?? []).filter((frame: any) => frame.meta?.custom?.resultType === 'exemplar');
  if (!frames.length) return <NoData text={noValue(props)} />;
  const legend = props.options.legend ?? { displayMode: 'list', placement: 'bottom', calcs: [], showLegend: true };
  return <TimeSeries frames={frames} width={props.width} height={props.height} timeRange={props.timeRange} timeZone={props.timeZone} structureRev={props.data.structureRev} legend={legend} options={props.options}>
    {(builder: UPlotConfigBuilder) => <Marks builder={builder} exemplars={exemplars} />}
  </TimeSeries>;
}

/** Where an exemplar leads, as the data source's exemplarTraceIdDestinations say: Grafana offers all, here it is a board before Explore. */
function leadsTo(labels: Record<string, string>): string | undefined {
  const fitting = config.exemplars.filter((one) => labels[one.name]);
  const chosen = fitting.find((one) => one.url && !one.datasourceUid) ?? fitting[0];
  return chosen && destination(chosen).replaceAll('${__value.raw}', encodeURIComponent(labels[chosen.name]));
}

function Marks({ builder, exemplars }: { builder: UPlotConfigBuilder; exemplars: any[] }) {
  const [plot, setPlot] = React.useState<{ u: any; drawn: number }>();
  const [noted, setNoted] = React.useState<Event[]>(events.value);
  const theme = useTheme2();
  React.useEffect(() => { const sub = events.subscribe(setNoted); return () => sub.unsubscribe(); }, []);
  React.useLayoutEffect(() => { builder.addHook('draw', (u: any) => queueMicrotask(() => setPlot({ u, drawn: performance.now() }))); }, [builder]);
  if (!plot?.u.over) return null;
  const { u } = plot, scale = u.series.find((_: any, i: number) => i > 0)?.scale;
  return createPortal(<>{noted.map((event, i) => <Noted key={`n${i}`} event={event} u={u} theme={theme} />)}{exemplars.flatMap((frame, k) => points(frame, u, scale, `e${k}`))}</>, u.over);
}

function Noted({ event, u, theme }: { event: Event; u: any; theme: gd.GrafanaTheme2 }) {
  const clamp = (at: number) => Math.max(0, Math.min(u.over.clientWidth, u.valToPos(at, 'x')));
  const left = clamp(event.from_ms), right = clamp(event.to_ms), color = theme.visualization.getColorByName(event.color);
  if (event.to_ms < u.scales.x.min || event.from_ms > u.scales.x.max) return null;
  return <div data-annotation={event.name} title={`${event.name}: ${event.text}`} style={{ position: 'absolute', top: 0, bottom: 0, left, width: Math.max(1, right - left), borderLeft: `1px dashed ${color}`, background: gd.colorManipulator.alpha(color, right - left > 2 ? 0.05 : 0.5), pointerEvents: 'none' }} />;
}

function points(frame: any, u: any, scale: string, key: string) {
  const [times, values, ...labels] = frame.fields;
  const step = Math.max(1, Math.floor(frame.length / MOST_MARKS)), { min, max } = u.scales[scale];
  const found: any[] = [];
  for (let i = 0; i < frame.length; i += step) {
    const x = u.valToPos(times.values[i], 'x'), y = u.valToPos(Math.max(min, Math.min(max, values.values[i])), scale); // at the edge, as in Grafana, where it lies beyond
    if (x < 0 || x > u.over.clientWidth) continue;
    const all = Object.fromEntries(labels.map((field: any) => [field.name, field.values[i]]));
    found.push(<a key={`${key}-${i}`} data-exemplar={all.trace_id} href={leadsTo(all)} title={JSON.stringify(all)} style={{ position: 'absolute', left: x - 3, top: Math.max(0, y - 3), width: 6, height: 6, background: '#1fa3ee', transform: 'rotate(45deg)' }} />);
  }
  return found;
}
