// Links of panels and of the board itself, as anchors. Own code: in Grafana they are the core's.
import React from 'react';
import { Icon } from '@grafana/ui';
import { sceneGraph } from '@grafana/scenes';

const TIME = '${__url_time_range}', VARIABLES = '${__all_variables}';

/** A link's address with variables and time put in where the link asks for them. */
export function address(link: any, scene: any): string {
  const more = [link.keepTime && TIME, link.includeVars && VARIABLES].filter(Boolean).join('&');
  const url = more ? `${link.url}${link.url.includes('?') ? '&' : '?'}${more}` : link.url;
  return sceneGraph.interpolate(scene, url);
}

const ITEM = { fontSize: 12, color: '#6e9fff', margin: '0 6px', whiteSpace: 'nowrap' } as const;
const ICON = { color: '#9a9aa7', margin: '0 3px' } as const;

/** Shown in the panel's head. The address is made at the click, since variables change without the head being drawn again. */
export const panelLinks = (links: any[], panel: () => any) => (
  <span>{links.map((link, i) => <a key={i} href="#" data-panel-link={i} style={ICON} onClick={(event) => { event.preventDefault(); location.href = address(link, panel()); }} title={link.title}><Icon name="external-link-alt" /></a>)}</span>
);

/** The menu on top; links of type `dashboards` list the boards with their tags. */
export function Menu({ dashboard, scene, boards }: { dashboard: any; scene: any; boards: any[] }) {
  const links = (dashboard.links ?? []).flatMap((link: any) => (link.type === 'dashboards' ? tagged(link, boards, dashboard.uid) : [link]));
  return <nav>{links.map((link: any, i: number) => <a key={i} href="#" data-board-link={i} style={ITEM} onClick={(event) => { event.preventDefault(); location.href = address(link, scene); }}>{link.title}</a>)}</nav>;
}

export const tagged = (link: any, boards: any[], uid: string) => boards
  .filter((board) => board.uid !== uid && (link.tags ?? []).every((tag: string) => board.tags?.includes(tag)))
  .map((board) => ({ ...link, type: 'link', title: board.title, url: `/d/${board.uid}` }));
