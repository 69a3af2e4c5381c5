// What the server says of the data sources: /harness/config.json. Filled once, before anything is drawn.
export interface Destination { name: string; url?: string; datasourceUid?: string; urlDisplayLabel?: string }
/** A link made of a log line: from a label of that name, or from what a pattern finds in the line. */
export interface Derived extends Destination { matcherType?: 'label' | 'regex'; matcherRegex: string }
export const config: { prometheus: string; tempo: string; loki: string; scrape_s: number; exemplars: Destination[]; derived: Derived[]; boards: any[] } = {
  prometheus: 'prometheus', tempo: 'tempo', loki: 'loki', scrape_s: 15, exemplars: [], derived: [], boards: [],
};

/** Where a destination leads: an address of ours, or Explore, which is not here. */
export const destination = ({ url, datasourceUid }: Destination) => (datasourceUid ? `/explore?datasource=${datasourceUid}&query=` + '${__value.raw}' : url ?? '');
export const readConfig = async () => void Object.assign(config, await (await fetch('/harness/config.json')).json());
