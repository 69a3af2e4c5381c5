// What a run has to say, as plain data: window.report(). A test judges it; nothing is judged here.
import * as gd from '@grafana/data';
import { VizPanel, sceneGraph } from '@grafana/scenes';
import { address, tagged } from './links';
import { drawn } from './panels/registry';
import { problems } from './scene';
import { asked } from './sources/common';

const MOST_ROWS = 3; // of each column whose links are looked at

const panelsOf = (scene: any): any[] => sceneGraph.findAllObjects(scene, (o) => o instanceof VizPanel);
const stateOf = (panel: any) => (panel.state.$data ? (sceneGraph.getData(panel).state.data as any) : undefined);

/** Whether every panel has its answer. */
export const settled = (scene: any) => panelsOf(scene).every((panel) => !panel.state.$data || panel.state._pluginLoadError || ['Done', 'Error'].includes(stateOf(panel)?.state));

export function report(dashboard: any, scene: any, boards: any[], errors: string[]) {
  const panels = panelsOf(scene);
  return {
    uid: dashboard.uid, title: dashboard.title, errors, problems: [...problems, ...unknownTransformations(dashboard), ...idleOverrides(panels)], queries: asked,
    variables: scene.state.$variables.state.variables.map(variable), panels: panels.map(panel),
    links: [...boardLinks(dashboard, scene, boards), ...exemplarLinks(), ...panels.flatMap((one) => [...headLinks(dashboard, one), ...dataLinks(one)])],
    marks: { exemplars: document.querySelectorAll('[data-exemplar]').length, annotations: document.querySelectorAll('[data-annotation]').length },
    range: { from: scene.state.$timeRange.state.value.from.valueOf(), to: scene.state.$timeRange.state.value.to.valueOf() },
  };
}

function variable(one: any) {
  const value = one.getValue();
  return { name: one.state.name, type: one.state.type, hide: one.state.hide, value: value && typeof value === 'object' && !Array.isArray(value) ? one.state.allValue ?? '' : value, options: one.state.options?.length, error: one.state.error ? String(one.state.error) : undefined };
}

function panel(one: any) {
  const data = stateOf(one), id = one.getLegacyPanelId(), box = document.querySelector(`[data-viz-panel-key="${one.state.key}"]`);
  return {
    id, title: one.state.title, type: one.state.pluginId, state: data?.state ?? 'Done', pluginError: one.state._pluginLoadError,
    error: data?.error?.message ?? data?.errors?.[0]?.message, crash: box?.querySelector('[data-panel-crash]')?.textContent ?? undefined,
    sideways: [...(box?.querySelectorAll('[role=grid]') ?? [])].some((grid) => grid.scrollWidth > grid.clientWidth + 1),
    cut: box ? cutTexts(box) : [],
    noData: !!box?.querySelector('[data-no-data]'), text: (box as HTMLElement | null)?.innerText?.slice(0, 4000),
    frames: (drawn.get(id)?.series ?? []).map((frame: any) => ({ name: frame.name, rows: frame.length, fields: frame.fields.map((field: any) => gd.getFieldDisplayName(field, frame, drawn.get(id)!.series)) })),
  };
}

/** Heads and cells of tables whose text begins before or, of heads, ends after their box: what is left of it may say something else. */
function cutTexts(box: Element): string[] {
  const found = [...box.querySelectorAll('[role=columnheader], [role=gridcell]')].filter((cell) => {
    const outer = cell.getBoundingClientRect(), range = document.createRange();
    range.selectNodeContents(cell);
    const inner = [...range.getClientRects()].filter((rect) => rect.width > 0);
    const head = cell.getAttribute('role') === 'columnheader';
    return inner.some((rect) => rect.left < outer.left - 1 || (head && rect.right > outer.right + 1));
  });
  return [...new Set(found.map((cell) => (cell as HTMLElement).innerText.trim()))].filter(Boolean);
}

/** Grafana passes over a transformation that it does not know, in silence. */
const unknownTransformations = (dashboard: any) => flat(dashboard).flatMap((one: any) => (one.transformations ?? []).filter((t: any) => !gd.standardTransformersRegistry.getIfExists(t.id)).map((t: any) => `${one.title}: unknown transformation '${t.id}'`));
const flat = (dashboard: any) => (dashboard.panels ?? []).flatMap((one: any) => [one, ...(one.panels ?? [])]);

/** Overrides by name that fit no column of a panel with data: most often the name before `organize` renamed it. */
function idleOverrides(panels: any[]) {
  return panels.flatMap((one) => {
    const series = drawn.get(one.getLegacyPanelId())?.series ?? [];
    if (!series.some((frame) => frame.length)) return [];
    const names = new Set(series.flatMap((frame) => frame.fields.flatMap((field) => [field.name, gd.getFieldDisplayName(field, frame, series)])));
    const named = (one.state.fieldConfig?.overrides ?? []).filter((o: any) => o.matcher.id === 'byName' && !names.has(o.matcher.options));
    return named.map((o: any) => `${one.state.title}: override by name '${o.matcher.options}' matches no field (there are: ${[...names].join(', ')})`);
  });
}

function boardLinks(dashboard: any, scene: any, boards: any[]) {
  const links = (dashboard.links ?? []).flatMap((link: any) => (link.type === 'dashboards' ? tagged(link, boards, dashboard.uid) : [link]));
  return links.map((link: any) => ({ where: 'menu', title: link.title, href: address(link, scene) }));
}

const exemplarLinks = () => [...document.querySelectorAll('a[data-exemplar][href]')].slice(0, MOST_ROWS).map((a) => ({ where: 'graph', title: 'exemplar', href: a.getAttribute('href') }));

function headLinks(dashboard: any, one: any) {
  const links = flat(dashboard).find((p: any) => p.id === one.getLegacyPanelId())?.links ?? [];
  return links.map((link: any) => ({ where: one.state.title, title: link.title, href: address(link, one) }));
}

function dataLinks(one: any) {
  const found: any[] = [];
  for (const frame of drawn.get(one.getLegacyPanelId())?.series ?? []) for (const field of frame.fields) {
    if (!field.config.links?.length || !field.getLinks) continue;
    for (let row = 0; row < Math.min(MOST_ROWS, frame.length); row++) {
      if (field.values[row] === null) continue;
      for (const link of field.getLinks({ valueRowIndex: row })) if (link.href) found.push({ where: one.state.title, field: field.name, title: link.title, href: link.href });
    }
  }
  return found;
}
