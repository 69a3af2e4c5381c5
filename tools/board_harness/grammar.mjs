// Syntax of PromQL, LogQL and TraceQL by Prometheus' and Grafana's own lezer grammars.
// Takes [{lang, text}] as JSON on standard input; gives, in the same order, [[{from, to}]]: where each is wrong.
import fs from 'node:fs';
import { parser as logql } from '@grafana/lezer-logql';
import { parser as traceql } from '@grafana/lezer-traceql';
import { parser as promql } from '@prometheus-io/lezer-promql';

const parsers = { promql, logql, traceql };
const wrong = ({ lang, text }) => {
  const found = [];
  parsers[lang].parse(text).iterate({ enter: (node) => void (node.type.isError && found.push({ from: node.from, to: node.to })) });
  return found;
};
console.log(JSON.stringify(JSON.parse(fs.readFileSync(0, 'utf8')).map(wrong)));
