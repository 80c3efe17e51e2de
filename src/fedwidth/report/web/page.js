// Puts the sections together.
const AXES = {
  rounds: { title: 'rounds', one: 'round', show: show.round, zero: true },
  bytes: { title: 'bytes sent, both ways', one: 'after', show: show.bytes, zero: true },
  macs: { title: 'multiply-adds of all clients', one: 'after', show: show.count, zero: true },
};
function curvesSection() {
  const has = (metric) => data.entries.some((entry) => entry.curves[metric]);
  if (state.loss === null && (has('global_loss') || has('train_loss'))) state.loss = has('global_loss') ? 'global_loss' : 'train_loss';
  const lines = (metric) => data.entries.map((entry, place) => ({ entry, place })).filter(({ entry }) => entry.curves[metric]).map(({ entry, place }) => {
    const curve = entry.curves[metric];
    return { entry: place, x: curve[state.axis], y: curve.mean, low: curve.band && curve.band[0], high: curve.band && curve.band[1] };
  });
  const values = (metric) => lines(metric).flatMap((line) => line.y).filter(known);
  const measured = [['global_accuracy', 'Test set'], ['validation_accuracy', 'Validation'], ['local_accuracy', 'Clients’ own data']].filter(([metric]) => metric !== 'validation_accuracy' || has(metric));
  if (!has(state.accuracy)) state.accuracy = measured.map(([metric]) => metric).find(has) || state.accuracy;
  const steep = (found) => found.length > 0 && Math.min(...found) > 0 && Math.max(...found) / Math.min(...found) > 30;
  const accuracy = lineChart(titled(), () => ({ lines: lines(state.accuracy), x: AXES[state.axis], y: scoreAxis() }));
  const drawAccuracy = redraws[redraws.length - 1];
  const loss = lineChart('Loss', () => ({ lines: lines(state.loss || 'global_loss'), x: AXES[state.axis], y: { show: show.loss, tick: (v) => (v >= 1e4 || (v && v < 1e-3) ? show.loss(v) : String(Number(v.toPrecision(3)))), floor: 0, log: state.log === 'log' || (state.log === 'auto' && steep(values(state.loss || 'global_loss'))) } }));
  const drawLoss = redraws[redraws.length - 1];
  const buttons = data.entries.map((entry, place) => h('button', { type: 'button', title: entry.label, onclick: () => {
    if (isHidden(place)) state.hidden.delete(entry.id); else state.hidden.add(entry.id);
    press();
  } }, swatch(place), clip(entry.label, 44)));
  const mark = () => buttons.forEach((button, place) => button.setAttribute('aria-pressed', String(!isHidden(place))));
  const press = () => {
    mark();
    redrawAll();
  };
  const all = data.entries.length > 8 && h('button', { type: 'button', onclick: () => {
    if (state.hidden.size) state.hidden.clear(); else data.entries.forEach((entry) => state.hidden.add(entry.id));
    press();
  } }, 'All / none');
  mark();
  const legend = h('div', { class: 'legend', role: 'group', 'aria-label': 'Lines; press to hide or show' }, all, buttons);
  const thinned = data.entries.some((entry) => Object.values(entry.curves).some((curve) => curve.measured > curve.rounds.length));
  const banded = data.entries.some((entry) => entry.seeds.length > 1);
  return [
    h('div', { class: 'controls' }, h('span', { class: 'small' }, 'Over'), segments('Horizontal axis', [['rounds', 'Rounds'], ['bytes', 'Bytes sent'], ['macs', 'Multiply-adds']], state.axis, (value) => { state.axis = value; drawAccuracy(); drawLoss(); })),
    legend,
    h('div', { class: 'pair' },
      h('div', {}, h('div', { class: 'head' }, h('h3', {}, titled()), segments(`${titled()} on`, measured, state.accuracy, (value) => { state.accuracy = value; drawAccuracy(); }), wholeAxis()), accuracy),
      h('div', {}, h('div', { class: 'head' }, h('h3', {}, 'Loss'), segments('Loss on', [['global_loss', 'Test set'], ['train_loss', 'Training']], state.loss || 'global_loss', (value) => { state.loss = value; drawLoss(); }),
        segments('Vertical axis', [['auto', 'Auto'], ['linear', 'Linear'], ['log', 'Log']], state.log, (value) => { state.log = value; drawLoss(); })), loss)),
    h('p', { class: 'note' }, 'Point at a chart, or focus it and use the arrow keys, for values; press a name to hide its line.',
      banded && ' Lines are means over seeds, bands reach from the smallest to the largest.',
      thinned && ` Long runs are drawn with at most ${data.points} points a line: of every stretch the smallest and the largest value are kept.`)];
}

// Each section: its id, what it is built by, and what of the data it depends on.
const SECTIONS = [
  ['compared', () => [rankingSection(), standingSection(), data.grid && gridSection(), reachedSection(), classesSection()], (d) => [d.entries.map(({ curves, ...others }) => others), d.comparison, d.grid, d.reached, d.classes]],
  ['curves', curvesSection, (d) => d.entries],
  ['coverage', coverageSection, (d) => [d.coverage.views.map(({ layers, ...others }) => [others, Object.entries(layers).map(([name, layer]) => [name, layer.frames])]), d.coverage.skipped, d.runs.map((run) => run.done)]],
  ['gains', gainsSection, (d) => [d.gains, d.widths, d.comparison]],
  ['attendance', attendanceSection, (d) => d.attendance],
  ['devices', devicesSection, (d) => d.devices],
  ['split', splitSection, (d) => d.splits],
  ['runs', runsSection, (d) => d.runs],
  ['repeat', repeatSection, (d) => d.runs.map((run) => [run.folder, run.command, run.config])],
];
const drawings = {}; // section -> what redraws it
const builtFrom = {}; // section -> the data it was built from, as text

function redrawAll() { for (const drawing of Object.values(drawings)) for (const redraw of drawing) redraw(); }

// Builds the sections whose data has changed, and leaves the others alone.
function build() {
  const waiting = document.getElementById('waiting');
  waiting.textContent = data.waiting || '';
  waiting.hidden = !data.waiting;
  const main = document.getElementById('main');
  main.hidden = !data.entries.length;
  document.querySelector('.toc').hidden = main.hidden;
  if (main.hidden) {
    for (const id of ['lede', 'title', 'tiles', 'troubles', 'privacy']) document.getElementById(id).replaceChildren();
    document.getElementById('title').textContent = 'No run yet';
    return;
  }
  headline();
  const names = data.entries.map((entry) => [entry.id, entry.label]);
  for (const [id, section, part] of SECTIONS) {
    const text = JSON.stringify([names, part(data)]);
    if (builtFrom[id] === text) continue;
    builtFrom[id] = text;
    redraws = drawings[id] = [];
    const content = fill(document.createDocumentFragment(), {}, [section()]);
    const keep = keepPlace(body(id));
    body(id).replaceChildren(content);
    for (const redraw of drawings[id]) redraw();
    keep();
  }
}

readPaint();
build();
let width = window.innerWidth;
window.addEventListener('resize', () => {
  if (window.innerWidth !== width) { width = window.innerWidth; requestAnimationFrame(redrawAll); }
});
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readPaint(); redrawAll(); });
if (!LIVE) document.getElementById('foot').textContent = `Made by fedwidth ${data.version}. This file is complete in itself and opens without a network.`;
else live();
