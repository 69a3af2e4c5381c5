// Tables on @grafana/ui's TableNG.
import React from 'react';
import * as gd from '@grafana/data';
import { TableNG } from '@grafana/ui/unstable';
import { NoData, noValue, type Props } from './common';

export function TablePanel(props: Props) {
  gd.cacheFieldDisplayNames(props.data.series); // without it a renamed column keeps its old head
  const frame = props.data.series.find((one) => one.fields.length) ?? props.data.series[0];
  if (!frame?.fields.length || !frame.length) return <NoData text={noValue(props)} />;
  return <TableNG data={frame} width={props.width} height={props.height} structureRev={props.data.structureRev} cellHeight={props.options.cellHeight ?? 'sm'} sortBy={props.options.sortBy} enablePagination={false} getActions={() => []} fieldConfig={props.fieldConfig} timeRange={props.timeRange} {...({} as any)} />;
}
