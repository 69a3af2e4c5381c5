// What Grafana's core gives its libraries at the start: registries, the list of data sources, the runner of queries. Own code.
import { EMPTY, catchError, from, map, of, startWith } from 'rxjs';
import * as gd from '@grafana/data';
import * as rt from '@grafana/runtime';
import { sceneGraph } from '@grafana/scenes';
import { CORE_TRANSFORMATIONS } from './transformations';

export const theme = gd.createTheme({ colors: { mode: 'dark' } });
let root: any;
/** The scene in which a variable is looked up where a caller does not say. */
export const setRoot = (scene: any) => void (root = scene);

const sceneOf = (scoped?: any) => scoped?.__sceneObject?.value?.valueOf?.() ?? root;
const interpolated = (text: any, scoped?: any, format?: any) => {
  const scene = sceneOf(scoped);
  return scene && typeof text === 'string' ? sceneGraph.interpolate(scene, text, scoped, format) : text;
};

export function bootRuntime(sources: any[]) {
  Object.assign(rt.config, { theme2: theme, bootData: { user: { timezone: 'utc', weekStart: '' }, settings: {}, navTree: [] } });
  rt.setAppEvents(new gd.EventBusSrv());
  rt.setBackendSrv({ get: async () => [], fetch: () => EMPTY } as any);
  rt.setCurrentUser?.({ login: 'harness' } as any);
  rt.setPluginImportUtils({
    importPanelPlugin: async (id: string) => { throw new Error(`no panel plugin ${id}`); },
    getPanelPluginFromCache: () => undefined,
  } as any);
  for (const set of [rt.setPluginLinksHook, rt.setPluginComponentsHook, rt.setPluginFunctionsHook] as any[]) {
    set(() => ({ links: [], components: [], functions: [], isLoading: false }));
  }
  rt.setPluginComponentHook?.((() => ({ component: null, isLoading: false })) as any);
  rt.setTemplateSrv({ replace: interpolated, getVariables: () => [], containsTemplate: (t: any) => /\$/.test(t ?? ''), updateTimeRange: () => {} } as any);
  rt.setDataSourceSrv(dataSourceSrv(sources) as any);
  rt.setRunRequest(runRequest as any);
  fillRegistries();
}

function dataSourceSrv(sources: any[]) {
  const settings = sources.map((source) => ({
    uid: source.uid, name: source.uid, type: source.type, isDefault: false, jsonData: {}, access: 'proxy', readOnly: true,
    meta: { id: source.type, name: source.type, metrics: true, info: { logos: { small: '', large: '' } } },
  }));
  const find = (ref: any, scoped?: any) => {
    const uid = interpolated(typeof ref === 'string' ? ref : ref?.uid, scoped);
    const found = sources.find((source) => source.uid === uid);
    if (!found) throw new Error(`Datasource ${uid} was not found`); // Grafana's own words
    return found;
  };
  return {
    get: async (ref: any, scoped: any) => find(ref, scoped),
    getList: (filter: any = {}) => settings.filter((one) => !filter.pluginId || one.type === filter.pluginId),
    getInstanceSettings: (ref: any, scoped: any) => {
      try { const { uid } = find(ref, scoped); return settings.find((one) => one.uid === uid); } catch { return undefined; }
    },
    reload: async () => {}, registerRuntimeDataSource: () => {},
  };
}

function runRequest(source: any, request: any) {
  const base = { timeRange: request.range, request, series: [], annotations: [] };
  const answer = source.query({ ...request, targets: request.targets.filter((target: any) => !target.hide) });
  const beside = (frame: any) => frame.meta?.dataTopic === gd.DataTopic.Annotations;
  return (answer?.subscribe ? answer : from(answer)).pipe(
    map((r: any) => ({
      ...base, state: r.error ? gd.LoadingState.Error : gd.LoadingState.Done, error: r.error, errors: r.error ? [r.error] : undefined,
      series: r.data.filter((frame: any) => !beside(frame)), annotations: r.data.filter(beside),
    })),
    catchError((e: any) => of({ ...base, state: gd.LoadingState.Error, error: { message: String(e?.message ?? e) } })),
    startWith({ ...base, state: gd.LoadingState.Loading }),
  );
}

/** Grafana's own, for a panel that says nothing else: green is not earned there. */
const THRESHOLDS = { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }] };

function fillRegistries() {
  // Two ids stand twice in standardTransformers; a registry takes each once.
  const transformers = new Map([...Object.values(gd.standardTransformers), ...CORE_TRANSFORMATIONS].map((one: any) => [one.id, one]));
  gd.standardTransformersRegistry.setInit(() => [...transformers.values()].map((one: any) => ({ id: one.id, name: one.name, transformation: async () => one, editor: () => null }) as any));
  const option = (id: string, process: any, defaultValue?: any) => ({ id, defaultValue, path: id, name: id, process, editor: () => null, override: () => null, shouldApply: () => true, settings: {}, category: ['Standard options'] });
  gd.standardFieldConfigEditorRegistry.setInit(() => [
    option('displayName', gd.displayNameOverrideProcessor), option('unit', gd.unitOverrideProcessor),
    option('min', gd.numberOverrideProcessor), option('max', gd.numberOverrideProcessor), option('decimals', gd.numberOverrideProcessor),
    option('noValue', gd.stringOverrideProcessor), option('color', gd.identityOverrideProcessor), option('thresholds', gd.thresholdsOverrideProcessor, THRESHOLDS),
    option('mappings', gd.valueMappingsOverrideProcessor), option('links', gd.dataLinksOverrideProcessor), option('actions', gd.identityOverrideProcessor),
    option('description', gd.stringOverrideProcessor), option('filterable', gd.booleanOverrideProcessor),
  ] as any);
}
