// Stat, gauge and bar gauge on @grafana/ui's BigValue and BarGauge. The round gauge is Grafana's core's: drawn as an arc here.
import React from 'react';
import * as gd from '@grafana/data';
import { BarGauge, BigValue, VizRepeater, useTheme2 } from '@grafana/ui';
import { NoData, empty, noValue, type Props } from './common';

function useValues(props: Props) {
  const theme = useTheme2();
  const values = gd.getFieldDisplayValues({
    fieldConfig: props.fieldConfig, reduceOptions: { calcs: ['lastNotNull'], ...props.options.reduceOptions }, replaceVariables: props.replaceVariables,
    theme, data: props.data.series, sparkline: true, timeZone: props.timeZone,
  });
  return { theme, values };
}

const Linked = ({ value, children }: any) => {
  const links = value.hasLinks && value.getLinks ? value.getLinks({}) : [];
  return links.length ? <a data-datalink href={links[0].href} title={links[0].title}>{children}</a> : children;
};

const Repeated = ({ props, values, orientation, render, spacing, ...more }: any) => (
  <VizRepeater width={props.width} height={props.height} orientation={orientation} source={values} getValues={() => values} renderCounter={props.renderCounter} itemSpacing={spacing} renderValue={render} {...more} />
);

export function Stat(props: Props) {
  const { theme, values } = useValues(props);
  const { textMode = 'auto', colorMode = 'value', graphMode = 'area', orientation = 'auto', justifyMode } = props.options;
  return <Repeated props={props} values={values} orientation={orientation} spacing={3} autoGrid render={({ value, width, height }: any) => (
    <Linked value={value}><BigValue theme={theme} width={width} height={height} value={value.display} count={values.length} textMode={textMode} sparkline={value.sparkline} colorMode={colorMode} graphMode={graphMode} justifyMode={justifyMode} text={props.options.text} /></Linked>
  )} />;
}

export function BarGaugePanel(props: Props) {
  const { theme, values } = useValues(props);
  const orientation = props.options.orientation && props.options.orientation !== 'auto' ? props.options.orientation : props.width > props.height ? 'vertical' : 'horizontal';
  if (empty(props)) return <NoData text={noValue(props)} />;
  return <Repeated props={props} values={values} orientation={orientation} spacing={8} minVizWidth={8} minVizHeight={16} render={({ value, width, height }: any) => (
    <Linked value={value}><BarGauge theme={theme} value={values.length === 1 ? { ...value.display, title: undefined } : value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)} width={width} height={height} orientation={orientation} displayMode={props.options.displayMode ?? 'gradient'} valueDisplayMode={props.options.valueMode ?? 'color'} namePlacement={props.options.namePlacement ?? 'auto'} text={props.options.text} itemSpacing={8} showUnfilled={props.options.showUnfilled ?? true} /></Linked>
  )} />;
}

export function GaugePanel(props: Props) {
  const { values } = useValues(props);
  if (empty(props)) return <NoData text={noValue(props)} />;
  return <Repeated props={props} values={values} orientation="auto" spacing={8} autoGrid render={({ value, width, height }: any) => <Linked value={value}><Arc value={value} width={width} height={height} /></Linked>} />;
}

function Arc({ value, width, height }: any) {
  const radius = Math.max(10, Math.min(width / 2, height * 0.62) - 14), x = width / 2, y = height * 0.62;
  const { min = 0, max = 1 } = value.field, share = Math.max(0, Math.min(1, (value.display.numeric - min) / (max - min || 1)));
  const at = (part: number) => [x - radius * Math.cos(Math.PI * part), y - radius * Math.sin(Math.PI * part)];
  const arc = (part: number) => `M ${at(0)} A ${radius} ${radius} 0 0 1 ${at(part)}`;
  return <svg width={width} height={height}>
    <path d={arc(1)} stroke="#2c2e33" strokeWidth={14} fill="none" />
    {Number.isFinite(share) && <path d={arc(share)} stroke={value.display.color} strokeWidth={14} fill="none" />}
    <text x={x} y={y - 4} textAnchor="middle" fontSize={Math.min(28, radius / 2)} fill={value.display.color}>{gd.formattedValueToString(value.display)}</text>
    <text x={x} y={y + 18} textAnchor="middle" fontSize={12} fill="#ccccdc">{value.display.title}</text>
  </svg>;
}
