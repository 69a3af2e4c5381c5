// In place of @grafana/plugin-compat/datasources, which imports names that @grafana/runtime 13.2 lacks: webpack lets that pass, esbuild does not.
import { getDataSourceSrv } from '@grafana/runtime';

const list = (filter?: any): any[] => getDataSourceSrv().getList(filter);
export const getDataSourceInstance = (ref?: any, scoped?: any) => getDataSourceSrv().get(ref, scoped);
export const getDataSourceInstanceList = async (filter?: any) => list(filter);
export const getDataSourceInstanceSettings = async (ref?: any, scoped?: any) => getDataSourceSrv().getInstanceSettings(ref, scoped);
export const getDefaultDataSourceInstanceListItem = async (given?: any[]) => (given ?? list()).find((one) => one.isDefault);
export const registerRuntimeDataSourceInstance = () => {};
export const useDataSourceInstance = () => ({});
export const useDefaultDataSourceInstanceListItem = () => ({});
