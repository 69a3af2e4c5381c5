// "-- Mixed --": a panel whose queries go to several data sources. Own code; the answers come together in the order of the queries.
import { RuntimeDataSource } from '@grafana/scenes';
import { getDataSourceSrv } from '@grafana/runtime';

export const MIXED = '-- Mixed --';

export class MixedSource extends RuntimeDataSource<any> {
  type = 'mixed';
  /** Without `mixed` the queries would get this data source for their own, and ask it for ever. */
  constructor() { super('mixed', MIXED); Object.assign(this, { name: MIXED, meta: { mixed: true } }); }

  async query(request: any): Promise<any> {
    const groups = new Map<string, any[]>();
    for (const target of request.targets) {
      const uid = target.datasource?.uid ?? '';
      groups.set(uid, [...(groups.get(uid) ?? []), target]);
    }
    const answers = await Promise.all([...groups.values()].map(async (targets) => {
      const source: any = await getDataSourceSrv().get(targets[0].datasource, request.scopedVars);
      return source.query({ ...request, targets });
    }));
    return { data: answers.flatMap((answer) => answer.data), error: answers.find((answer) => answer.error)?.error };
  }
}
