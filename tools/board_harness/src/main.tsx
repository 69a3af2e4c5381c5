// The page: /d/UID draws the board UID with the variables and the time of its address, and window.report() says how it went.
import React from 'react';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';
import { ThemeContext } from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles, PortalContainer } from '@grafana/ui';
import { sceneGraph, sceneUtils } from '@grafana/scenes';
import { runAnnotations } from './annotations';
import { config, readConfig } from './config';
import { Menu } from './links';
import { registerPanels } from './panels/registry';
import { report, settled } from './report';
import { bootRuntime, setRoot, theme } from './runtime';
import { toScene } from './scene';
import { LokiSource } from './sources/loki';
import { MixedSource } from './sources/mixed';
import { PrometheusSource } from './sources/prometheus';
import { TempoSource } from './sources/tempo';

const POLL_MS = 50;
const errors: string[] = [];
const say = (part: Record<string, unknown>) => Object.assign(window as any, part);
addEventListener('error', (event) => errors.push(String(event.message)));
addEventListener('unhandledrejection', (event) => errors.push(`rejection: ${(event as any).reason?.message ?? event.reason}`));

async function board(uid: string) {
  const answer = await fetch(`/harness/boards/${uid}.json`);
  if (!answer.ok) throw new Error(`Dashboard not found: ${uid}`); // as Grafana has it
  return answer.json();
}

async function main() {
  await readConfig();
  await initPluginTranslations('grafana-scenes', [async () => ({})] as any);
  bootRuntime([new PrometheusSource(config.prometheus, '/prometheus', config.scrape_s), new TempoSource(config.tempo, '/tempo'), new LokiSource(config.loki, '/loki'), new MixedSource()]);
  registerPanels();
  const dashboard = await board(decodeURIComponent(location.pathname.split('/')[2] ?? ''));
  const scene = toScene(dashboard);
  setRoot(scene);
  sceneUtils.syncStateFromSearchParams(scene, new URLSearchParams(location.search));
  scene.activate();
  createRoot(document.getElementById('root')!).render(<MemoryRouter><Page dashboard={dashboard} scene={scene} /></MemoryRouter>);
  document.title = dashboard.title;
  keepAnnotations(dashboard, scene);
  say({ report: () => report(dashboard, scene, config.boards, errors), settled: () => settled(scene) && annotated });
}

let annotated = false;
/** Once the panels have their data, so that variables are known; and again whenever the time changes. */
function keepAnnotations(dashboard: any, scene: any) {
  const run = () => runAnnotations(dashboard, scene).finally(() => { annotated = true; });
  const wait = () => (settled(scene) ? void run() : void setTimeout(wait, POLL_MS));
  sceneGraph.getTimeRange(scene).subscribeToState(() => void run());
  setTimeout(wait, POLL_MS);
}

const Page = ({ dashboard, scene }: any) => (
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <PortalContainer />
    <div style={{ padding: '8px 14px' }}>
      <div style={{ display: 'flex', alignItems: 'center', justifyContent: 'space-between', flexWrap: 'wrap', margin: '2px 0 8px' }}>
        <h1 style={{ fontSize: 18, margin: 0 }}>{dashboard.title}</h1>
        <Menu dashboard={dashboard} scene={scene} boards={config.boards} />
      </div>
      <scene.Component model={scene} />
    </div>
  </ThemeContext.Provider>
);

main().catch((error) => {
  errors.push(`boot: ${error?.message ?? error}`);
  document.body.innerText = String(error?.message ?? error);
  say({ report: () => ({ errors, problems: [], queries: [], variables: [], panels: [], links: [] }), settled: () => true });
});
