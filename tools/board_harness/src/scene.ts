// A dashboard's JSON (the classic model) as a scene. Own code. What it cannot show goes to `problems`, never past in silence.
import {
  ConstantVariable, CustomVariable, DataSourceVariable, EmbeddedScene, IntervalVariable, QueryVariable, SceneDataTransformer, SceneGridItem,
  SceneGridLayout, SceneGridRow, SceneQueryRunner, SceneTimePicker, SceneTimeRange, SceneVariableSet, TextBoxVariable, VariableValueSelectors, VizPanel,
} from '@grafana/scenes';
import { panelLinks } from './links';

export const problems: string[] = [];
const DATALESS = ['text', 'row', 'dashlist'];

export function toScene(dashboard: any) {
  const children: any[] = [];
  let row: any;
  for (const panel of dashboard.panels ?? []) {
    if (panel.type === 'row') {
      row = new SceneGridRow({ title: panel.title, isCollapsed: false, y: panel.gridPos.y, x: 0, children: (panel.panels ?? []).map(placed) });
      children.push(row);
    } else if (row) row.setState({ children: [...row.state.children, placed(panel)] });
    else children.push(placed(panel));
  }
  return new EmbeddedScene({
    $timeRange: new SceneTimeRange({ from: dashboard.time?.from ?? 'now-1h', to: dashboard.time?.to ?? 'now', timeZone: 'utc' }),
    $variables: new SceneVariableSet({ variables: (dashboard.templating?.list ?? []).map(variable).filter(Boolean) }),
    controls: [new VariableValueSelectors({}), new SceneTimePicker({})],
    body: new SceneGridLayout({ children, isDraggable: false, isResizable: false }),
  });
}

const placed = (panel: any) => new SceneGridItem({ x: panel.gridPos.x, y: panel.gridPos.y, width: panel.gridPos.w, height: panel.gridPos.h, body: viz(panel) });

function viz(panel: any) {
  if (panel.repeat) problems.push(`${panel.title}: repeat is not done by the harness`);
  if (!panel.targets?.length && !DATALESS.includes(panel.type)) problems.push(`${panel.title}: a panel without targets`);
  const made: any = new VizPanel({
    key: `panel-${panel.id}`, title: panel.title ?? '', description: panel.description, pluginId: panel.type, pluginVersion: '13.2.3',
    options: panel.options ?? {}, fieldConfig: panel.fieldConfig ?? { defaults: {}, overrides: [] }, displayMode: panel.transparent ? 'transparent' : 'default',
    titleItems: panelLinks(panel.links ?? [], () => made), $data: data(panel),
  });
  return made;
}

function data(panel: any) {
  if (!panel.targets?.length) return undefined;
  const $data = new SceneQueryRunner({ datasource: panel.datasource ?? panel.targets[0].datasource, queries: panel.targets, maxDataPoints: panel.maxDataPoints, minInterval: panel.interval });
  return panel.transformations?.length ? new SceneDataTransformer({ $data, transformations: panel.transformations }) : $data;
}

function variable(given: any): any {
  const base = { name: given.name, label: given.label, hide: given.hide, skipUrlSync: given.skipUrlSync, description: given.description };
  const many = { ...base, isMulti: given.multi, includeAll: given.includeAll, allValue: given.allValue, value: given.current?.value ?? (given.includeAll ? '$__all' : ''), text: given.current?.text ?? '' };
  switch (given.type) {
    case 'query': return new QueryVariable({ ...many, datasource: given.datasource, query: given.query, regex: given.regex ?? '', refresh: given.refresh ?? 1, sort: given.sort ?? 0 } as any);
    case 'datasource': return new DataSourceVariable({ ...many, pluginId: given.query, regex: given.regex ?? '' } as any);
    case 'textbox': return new TextBoxVariable({ ...base, value: given.current?.value || given.query || '' } as any);
    case 'custom': return new CustomVariable({ ...many, query: given.query } as any);
    case 'constant': return new ConstantVariable({ ...base, value: given.query } as any);
    case 'interval': return new IntervalVariable({ ...base, value: given.current?.value, intervals: String(given.query).split(',') } as any);
    default: problems.push(`variable ${given.name}: type ${given.type} is not handled by the harness`); return undefined;
  }
}
