import React from 'react';
import * as gd from '@grafana/data';
import type { Props } from './common';

export function Text(props: Props) {
  const content = props.replaceVariables(props.options.content ?? '');
  const html = props.options.mode === 'html' ? gd.textUtil.sanitize(content) : gd.renderMarkdown(content);
  return <div className="markdown-html" style={{ padding: 4, overflow: 'auto', height: props.height }} dangerouslySetInnerHTML={{ __html: html }} />;
}
