// Writes a TypeScript file for each dashboard, and one of deliberate mistakes, runs tsc on all of them, and reports its errors in terms
// of the dashboards. It is run by the script check:
//   node check.mjs FOLDER DASHBOARD...     FOLDER: for the written files, beside node_modules
import { spawnSync } from 'node:child_process';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';

const [folder, ...dashboards] = process.argv.slice(2);
const modules = join(folder, '../node_modules');

// Mistakes that tsc must reject. The path names the key to set, or with `undefined` the key to remove; `at` is the path of the expected
// error, if it differs. An asterisk stands for each kind of panel in the dashboards, `dashboard` for the keys around panels.
const UNKNOWN = [2353, 2561];
const TYPE = [2322, 2820];
const MISSING = [2741];
const mistakes = [
  ['dashboard', 'wier', 1, UNKNOWN],
  ['dashboard', 'time.until', 'now', UNKNOWN],
  ['dashboard', 'links.0.wier', 1, UNKNOWN],
  ['dashboard', 'templating.list.0.wier', 1, UNKNOWN],
  ['dashboard', 'templating.list.1.query.wier', 1, UNKNOWN],
  ['dashboard', 'refresh', 30, TYPE],
  ['dashboard', 'schemaVersion', '39', TYPE],
  ['dashboard', 'graphTooltip', 7, TYPE],
  ['dashboard', 'templating.list.0.type', 'querry', TYPE],
  ['dashboard', 'templating.list.0.hide', 9, TYPE],
  ['dashboard', 'schemaVersion', undefined, MISSING, ''],
  ['*', 'wier', 1, UNKNOWN],
  ['*', 'gridPos.z', 1, UNKNOWN],
  ['*', 'gridPos.w', '12', TYPE],
  ['*', 'options.wier', 1, UNKNOWN],
  ['*', 'fieldConfig.wier', 1, UNKNOWN],
  ['*', 'fieldConfig.defaults.wier', 1, UNKNOWN],
  ['*', 'fieldConfig.defaults.unit', 1, TYPE],
  ['*', 'fieldConfig.defaults.thresholds.mode', 'absolut', TYPE],
  ['*', 'fieldConfig.defaults.mappings', [{ type: 'valeu', options: {} }], TYPE, 'fieldConfig.defaults.mappings.0.type'],
  ['*', 'fieldConfig.overrides', [{ matcher: { id: 'byName' }, properties: [{ id: 'unti' }] }], TYPE, 'fieldConfig.overrides.0.properties.0.id'],
  ['*', 'targets.0.wier', 1, UNKNOWN],
  ['*', 'targets.0.format', 'timeseries', TYPE],
  ['*', 'targets.0.expr', undefined, MISSING, 'targets.0'],
  ['heatmap', 'options.color.mode', 'shceme', TYPE],
  ['heatmap', 'options.color.wier', 1, UNKNOWN],
  ['heatmap', 'options.showValue', 'nevr', TYPE],
  ['heatmap', 'options.yAxis', undefined, MISSING, 'options'],
  ['heatmap', 'fieldConfig.defaults.custom.wier', 1, UNKNOWN],
  ['stat', 'options.colorMode', 'valeu', TYPE],
  ['stat', 'options.reduceOptions.calcs', 'lastNotNull', TYPE],
  ['stat', 'fieldConfig.defaults.custom.wier', 1, TYPE],
  ['state-timeline', 'options.showValue', 'atuo', TYPE],
  ['state-timeline', 'options.rowHeight', '0.8', TYPE],
  ['state-timeline', 'fieldConfig.defaults.custom.fillOpacity', '80', TYPE],
  ['state-timeline', 'fieldConfig.defaults.custom.wier', 1, UNKNOWN],
  ['table', 'options.cellHeight', 'xs', TYPE],
  ['table', 'options.showHeader', 'yes', TYPE],
  ['table', 'fieldConfig.defaults.custom.align', 'centre', TYPE],
  ['table', 'fieldConfig.defaults.custom.wier', 1, UNKNOWN],
  ['timeseries', 'options.tooltip.mode', 'mutli', TYPE],
  ['timeseries', 'options.legend.wier', 1, UNKNOWN],
  ['timeseries', 'fieldConfig.defaults.custom.drawStyle', 'lines', TYPE],
  ['timeseries', 'fieldConfig.defaults.custom.stacking.mode', 'stacked', TYPE],
  ['timeseries', 'fieldConfig.defaults.custom.lineWidth', '1', TYPE],
  ['timeseries', 'fieldConfig.defaults.custom.wier', 1, UNKNOWN],
];

// The name of a constant in place of a value.
class Name {
  constructor(text) {
    this.text = text;
  }
}

// A TypeScript file that records the origin of each line.
class Written {
  lines = [];

  line(text, of = {}) {
    this.lines.push({ text, of });
  }

  // Writes one key or element per line.
  value(value, of, path = '', before = '', after = '') {
    const text = value instanceof Name ? value.text : JSON.stringify(value);
    if (value instanceof Name || Object(value) !== value) {
      this.line(before + text + after, { ...of, path });
      return;
    }
    this.line(before + text[0], { ...of, path });
    for (const [key, inner] of Object.entries(value)) {
      this.value(inner, of, path === '' ? key : `${path}.${key}`, Array.isArray(value) ? '' : `${JSON.stringify(key)}: `, ',');
    }
    this.line(text.at(-1) + after);
  }

  // Writes a constant for each panel, and one for the dashboard.
  board(board, file) {
    let count = 0;
    const panels = (list) =>
      list.map((panel) => {
        const of = { file, panel: `panel "${panel.title}" (${panel.type})` };
        const it = panel.panels ? { ...panel, panels: panels(panel.panels) } : panel;
        const name = new Name(`panel${(count += 1)}`);
        this.value(it, of, '', `const ${name.text}: Panels[${JSON.stringify(panel.type)}] = `, ';');
        return name;
      });
    this.line("import type { Board, Panels, Schema } from './types';");
    this.value({ ...board, panels: panels(board.panels) }, { file }, '', 'const board: Board = ', ';');
    this.line('board satisfies Schema;', { file });
  }

  save(name) {
    writeFileSync(join(folder, name), this.lines.map(({ text }) => `${text}\n`).join(''));
  }
}

// Returns a copy with the value at a path set or removed.
function changed(it, path, value) {
  const copy = structuredClone(it);
  const keys = path.split('.');
  const last = keys.pop();
  const inner = keys.reduce((of, key) => (of[key] ??= {}), copy);
  if (value === undefined) delete inner[last];
  else inner[last] = value;
  return copy;
}

function mistaken(boards) {
  const file = new Written();
  const expected = [];
  const ofKind = new Map();
  for (const panel of boards.flatMap((board) => board.panels.flatMap((panel) => [panel, ...(panel.panels ?? [])]))) {
    if (panel.type !== 'row' && !ofKind.has(panel.type)) ofKind.set(panel.type, panel);
  }
  file.line("import type { Board, Panels } from './types';");
  for (const [on, path, value, codes, at = path] of mistakes) {
    const originals = on === 'dashboard' ? [[on, { ...boards[0], panels: [] }]] : [...ofKind].filter(([kind]) => on === '*' || on === kind);
    for (const [kind, original] of originals) {
      const label = `${kind}: ${value === undefined ? 'without' : `${JSON.stringify(value)} as`} ${path}`;
      const type = kind === 'dashboard' ? 'Board' : `Panels[${JSON.stringify(kind)}]`;
      const from = file.lines.length;
      file.value(changed(original, path, value), {}, '', `export const mistake${expected.length}: ${type} = `, ';');
      const line = file.lines.findIndex(({ of }, index) => index >= from && of.path === at);
      expected.push({ label, codes, line: line + 1 });
    }
  }
  return [file, expected];
}

// Returns tsc's errors: file, line, code and message, whose further lines are indented.
function compile() {
  const tsc = join(modules, 'typescript/bin/tsc');
  const run = spawnSync(process.execPath, [tsc, '-p', '.', '--pretty', 'false'], { encoding: 'utf8', cwd: folder, maxBuffer: 1 << 28 });
  const errors = [];
  let other = run.error ? `${run.error}\n` : run.stderr;
  for (const line of run.stdout.split('\n')) {
    const found = /^(.+?)\((\d+),\d+\): error TS(\d+): (.*)$/.exec(line);
    if (found) errors.push({ file: found[1], line: Number(found[2]), code: Number(found[3]), message: [found[4]] });
    else if (/^ /.test(line) && errors.length > 0) errors.at(-1).message.push(line.trim());
    else if (line !== '') other += `${line}\n`;
  }
  if (other !== '' || (run.status !== 0 && errors.length === 0)) throw new Error(`tsc failed with ${run.status}: ${other}`);
  return errors;
}

// Returns an error's text without the types' long names.
function describe({ code, message }) {
  const [first] = message;
  const missing = /^Property '(.+?)' is missing/.exec(first) ?? /missing the following properties from type .*: (.*)$/.exec(first);
  if (missing) return `misses ${missing[1]}`;
  if (UNKNOWN.includes(code)) return 'is not a key of the type';
  return message.map((line) => (line.length > 400 ? `${line.slice(0, 400)}...` : line)).join(' ');
}

function main() {
  if (dashboards.length === 0) throw new Error('no dashboards given');
  for (const name of ['types.ts', 'tsconfig.json']) copyFileSync(new URL(name, import.meta.url), join(folder, name));
  const written = new Map();
  const boards = dashboards.map((path) => {
    const name = basename(path);
    try {
      const board = JSON.parse(readFileSync(path, 'utf8'));
      const file = new Written();
      file.board(board, name);
      written.set(`board-${name}.ts`, file);
      return board;
    } catch (error) {
      throw new Error(`${name}: ${error.message}`);
    }
  });
  const [refused, expected] = mistaken(boards);
  written.set('mistakes.ts', refused);
  for (const [name, file] of written) file.save(name);

  const problems = [];
  const errors = compile();
  for (const error of errors.filter(({ file }) => file !== 'mistakes.ts')) {
    const { file, panel, path } = written.get(error.file)?.lines[error.line - 1].of ?? {};
    const where = [file ?? `${error.file}:${error.line}`, panel, path].filter(Boolean).join(': ');
    problems.push(`${where}: ${describe(error)}`);
  }
  // An error in a dashboard hides the next in the same object, so the expected positions are known only for copies of valid dashboards.
  for (const { label, codes, line } of problems.length === 0 ? expected : []) {
    const found = errors.some((error) => error.file === 'mistakes.ts' && error.line === line && codes.includes(error.code));
    if (!found) problems.push(`self-test: tsc does not report the mistake at the expected position: ${label}`);
  }
  if (problems.length > 0) throw new Error(problems.join('\n'));
  const { version } = JSON.parse(readFileSync(join(modules, '@grafana/schema/package.json'), 'utf8'));
  console.log(`${boards.length} dashboards conform to @grafana/schema ${version}; ${expected.length} deliberate mistakes are rejected`);
}

try {
  main();
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
