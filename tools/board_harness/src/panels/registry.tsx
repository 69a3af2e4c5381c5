// Panel plugins: thin shells (Grafana's own are part of its core, AGPL). Each remembers the frames it was given, for the report.
import React from 'react';
import * as gd from '@grafana/data';
import { registerRuntimePanelPlugin } from '@grafana/scenes';
import { BarChart } from './barchart';
import { BarGaugePanel, GaugePanel, Stat } from './numbers';
import { Heatmap } from './heatmap';
import { Logs, Traces } from './telemetry';
import { StateTimeline } from './timeline';
import { TablePanel } from './table';
import { Text } from './text';
import { Series } from './series';
import { XYChart } from './xychart';

/** By panel id, the data as the panel got it: transformed, with units, overrides and links. */
export const drawn = new Map<number, gd.PanelData>();

const CUSTOM_DEFAULTS: Record<string, any> = {
  align: undefined, axisLabel: undefined, axisPlacement: 'auto', barAlignment: 0, cellOptions: undefined, displayMode: undefined, drawStyle: 'line', fillOpacity: 0,
  filterable: undefined, gradientMode: 'none', hidden: undefined, hideFrom: { viz: false, legend: false, tooltip: false }, inspect: undefined, lineInterpolation: 'linear',
  lineStyle: undefined, lineWidth: 1, minWidth: undefined, pointSize: 5, scaleDistribution: { type: 'linear' }, showPoints: 'auto', spanNulls: false,
  stacking: { mode: 'none', group: 'A' }, thresholdsStyle: { mode: 'off' }, transform: undefined, width: undefined, axisSoftMin: undefined, axisSoftMax: undefined, fillBelowTo: undefined,
};

function custom(builder: any) {
  for (const [path, defaultValue] of Object.entries(CUSTOM_DEFAULTS)) {
    builder.addCustomEditor({ id: path, path, name: path, editor: () => null, override: () => null, process: gd.identityOverrideProcessor, shouldApply: () => true, defaultValue });
  }
}

class Guard extends React.Component<{ children: any }, { error?: Error }> {
  state: { error?: Error } = {};
  static getDerivedStateFromError(error: Error) { return { error }; }
  render() { return this.state.error ? <div data-panel-crash style={{ color: '#ff7383', padding: 8 }}>{String(this.state.error.message)}</div> : this.props.children; }
}

function register(pluginId: string, Component: any, color: any = { mode: 'thresholds' }): gd.PanelPlugin {
  const Remembering = (props: gd.PanelProps<any>) => {
    drawn.set(props.id, props.data);
    return <Guard><Component {...props} /></Guard>;
  };
  const plugin = new gd.PanelPlugin(Remembering).useFieldConfig({ standardOptions: { color: { defaultValue: color } } as any, useCustomConfig: custom }).setDataSupport({ annotations: true, alertStates: true });
  registerRuntimePanelPlugin({ pluginId, plugin: plugin as any });
  return plugin;
}

export function registerPanels() {
  const palette = { mode: 'palette-classic' };
  register('stat', Stat);
  register('gauge', GaugePanel);
  register('bargauge', BarGaugePanel);
  register('timeseries', Series, palette);
  register('table', TablePanel).setNoPadding();
  register('state-timeline', StateTimeline);
  register('heatmap', Heatmap);
  register('barchart', BarChart, palette);
  register('xychart', XYChart, palette);
  register('text', Text);
  register('logs', Logs);
  register('traces', Traces);
}
