// Bundles the page into dist/.  node build.mjs
import * as esbuild from 'esbuild';
import fs from 'node:fs';

fs.rmSync('dist', { recursive: true, force: true });
fs.mkdirSync('dist');
const began = Date.now();
await esbuild.build({
  entryPoints: { main: 'src/main.tsx' },
  outdir: 'dist',
  bundle: true,
  format: 'esm',
  splitting: true,
  minify: true,
  jsx: 'automatic',
  target: 'es2022',
  logLevel: 'error',
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}', global: 'window' },
  loader: { '.svg': 'dataurl', '.woff2': 'dataurl', '.ttf': 'dataurl', '.png': 'dataurl' },
  alias: { '@grafana/plugin-compat/datasources': './src/compat.ts' },
});
fs.copyFileSync('index.html', 'dist/index.html');
console.log(`built in ${Date.now() - began} ms`);
