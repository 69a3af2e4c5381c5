// Transformations that Grafana's core adds to those of @grafana/data. Own code, after their documentation.
import { map } from 'rxjs';
import * as gd from '@grafana/data';

/** "Extract fields": the keys of a column of objects, or of JSON in text, become columns. */
const extractFields = {
  id: 'extractFields', name: 'Extract fields', defaultOptions: {},
  operator: (options: any) => (source: any) => source.pipe(map((frames: gd.DataFrame[]) => frames.map((frame) => extracted(frame, options)))),
};

function extracted(frame: gd.DataFrame, options: any): gd.DataFrame {
  const column = frame.fields.find((field) => field.name === options.source || gd.getFieldDisplayName(field, frame) === options.source);
  if (!column) return frame;
  const rows = column.values.map(parsed);
  const paths: { path: string; alias?: string }[] = options.jsonPaths?.length ? options.jsonPaths : [...new Set(rows.flatMap((row: any) => Object.keys(row)))].map((path) => ({ path: path as string }));
  const made = paths.map(({ path, alias }) => {
    const values = rows.map((row: any) => row[path] ?? path.split('.').reduce((at: any, key) => at?.[key], row) ?? null);
    const known = values.find((value: any) => value !== null);
    return { name: alias || path, values, type: known === undefined ? gd.FieldType.other : gd.getFieldTypeFromValue(known), config: {} } as gd.Field;
  });
  const kept = !options.replace ? frame.fields : options.keepTime ? frame.fields.filter((field) => field.type === gd.FieldType.time) : [];
  return { ...frame, fields: [...kept, ...made] };
}

function parsed(value: any): Record<string, any> {
  if (value && typeof value === 'object') return value;
  try { const found = JSON.parse(value); return found && typeof found === 'object' ? found : {}; } catch { return {}; }
}

export const CORE_TRANSFORMATIONS: any[] = [extractFields];
