// The coverage view: one grid per entry, coloured by how often each weight was trained, with one slider for all.
const heat = { stops: [], never: [0, 0, 0] };

function rgb(name) {
  const text = paint(name).slice(1);
  return [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16));
}
function readPaint() {
  heat.stops = ['--heat-low', '--heat-mid', '--heat-high'].map(rgb);
  heat.never = rgb('--never');
}
function shade(share) {
  const t = Math.sqrt(share) * 2; // most shares are small: the root spreads them
  const [a, b] = t < 1 ? [heat.stops[0], heat.stops[1]] : [heat.stops[1], heat.stops[2]];
  return a.map((v, at) => Math.round(v + (b[at] - v) * (t < 1 ? t : t - 1)));
}
async function unpack(layer) { // once; the cells of all frames, a byte each
  if (!layer || layer.bytes) return;
  const packed = Uint8Array.from(atob(layer.frames), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  layer.bytes = new Uint8Array(await new Response(stream).arrayBuffer());
}
const firstLayer = (views) => (views.some((view) => view.layers[state.layer]) ? state.layer : views[0].first);
const unpackShown = (found) => Promise.all(found.coverage.views.map((view) => unpack(view.layers[firstLayer(found.coverage.views)])));

function heatBar() {
  const bar = h('canvas', { width: 128, height: 1, 'aria-hidden': 'true' });
  redraws.push(() => {
    readPaint();
    const context = bar.getContext('2d');
    for (let x = 0; x < 128; x += 1) {
      context.fillStyle = `rgb(${shade((x / 127) ** 2).join(' ')})`;
      context.fillRect(x, 0, 1, 1);
    }
  });
  return bar;
}
const heatScale = () => h('span', { class: 'scale' }, h('span', { class: 'never' }), 'never', h('span', {}, 'rarely'), heatBar(), 'in every client update');

function heatGrid(view, shown) {
  const canvas = h('canvas', { role: 'img', tabindex: 0 });
  const words = h('p', { class: 'small' });
  const entry = data.entries[view.entry];
  const host = h('div', { class: 'figure' }, entryHead(view.entry), canvas, words);
  const tip = tooltip(host);
  let cell = [0, 0];

  function frameAt() { // the last frame not after the slider's round
    let at = 0;
    view.rounds.forEach((round, place) => { if (round <= shown.round) at = place; });
    return at;
  }
  function draw() {
    const layer = view.layers[shown.layer];
    canvas.hidden = !layer;
    tip.hide();
    if (!layer) { words.textContent = 'no such layer in this model'; return; }
    if (!layer.bytes) { unpack(layer).then(draw); return; }
    const [rows, columns] = layer.cells;
    const at = frameAt();
    const cells = layer.bytes.subarray(at * rows * columns, (at + 1) * rows * columns);
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.aspectRatio = String(Math.max(0.8, Math.min(6, layer.shape[1] / layer.shape[0])));
    const image = new ImageData(columns, rows);
    cells.forEach((value, place) => {
      image.data.set([...(value ? shade(value / 255) : heat.never), 255], place * 4);
    });
    canvas.getContext('2d').putImageData(image, 0, 0);
    words.textContent = `${show.percent(view.share[at], view.share[at] > 0.9995 || view.share[at] < 0.0005 ? 0 : 1)} trained · evenness ${show.plain(view.evenness[at])}`;
    canvas.setAttribute('aria-label', `${entry.label}, ${shown.layer}, after round ${view.rounds[at]}: ${words.textContent}. Arrow keys read cells.`);
  }
  function point(row, column, x, y) {
    const layer = view.layers[shown.layer];
    if (!layer || !layer.bytes) return '';
    const [rows, columns] = layer.cells;
    cell = [Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))];
    const at = frameAt();
    const share = layer.bytes[at * rows * columns + cell[0] * columns + cell[1]] / 255;
    const span = (place, cells, size) => {
      const [first, last] = [Math.floor((place * size) / cells), Math.max(0, Math.floor(((place + 1) * size) / cells) - 1)];
      return first >= last ? `${first}` : `${first}–${last}`;
    };
    const place = `out ${span(cell[0], rows, layer.shape[0])} × in ${span(cell[1], columns, layer.shape[1])}`;
    const found = share ? `trained in about ${show.percent(share, 0)} of ${plural(view.updates[at], 'client update')}` : 'never trained so far';
    tip.show(x ?? canvas.offsetLeft + ((cell[1] + 0.5) / columns) * canvas.offsetWidth, y ?? canvas.offsetTop + ((cell[0] + 0.5) / rows) * canvas.offsetHeight + 12, [h('b', {}, place), h('div', {}, found)]);
    return `${place}: ${found}`;
  }
  canvas.addEventListener('pointermove', (event) => {
    const area = canvas.getBoundingClientRect();
    const box = host.getBoundingClientRect();
    const [rows, columns] = view.layers[shown.layer].cells;
    point(Math.floor(((event.clientY - area.top) / area.height) * rows), Math.floor(((event.clientX - area.left) / area.width) * columns), event.clientX - box.left, event.clientY - box.top + 12);
  });
  canvas.addEventListener('keydown', (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    say(point(cell[0] + move[0], cell[1] + move[1]));
  });
  for (const name of ['pointerleave', 'blur']) canvas.addEventListener(name, () => tip.hide());
  redraws.push(draw);
  return { host, draw };
}
const entryHead = (entry) => h('h3', { title: data.entries[entry].label }, swatchInline(entry), clip(data.entries[entry].label, 44));
const swatchInline = (entry) => h('span', { class: 'inline' }, swatch(entry));

function coverageSection() {
  const { views, skipped } = data.coverage;
  const reasons = [...new Set(skipped.map(({ reason }) => reason))].slice(0, 8).map((reason) => {
    const names = skipped.filter((one) => one.reason === reason).map(({ entry }) => data.entries[entry].label);
    return h('p', { class: 'note' }, `Not shown: ${names.slice(0, 8).join(', ')}${names.length > 8 ? ` and ${names.length - 8} more` : ''} (${reason}).`);
  });
  if (!views.length) return [h('p', { class: 'intro' }, 'There is no picture of the weights here.'), reasons];
  const names = [...new Set(views.flatMap((view) => Object.keys(view.layers)))];
  const rounds = [...new Set(views.flatMap((view) => view.rounds))].sort((a, b) => a - b);
  const last = rounds.length - 1;
  const start = state.round === null ? last : Math.max(0, rounds.findLastIndex((round) => round <= state.round));
  const shown = { layer: firstLayer(views), round: rounds[start] };
  const grids = views.map((view) => heatGrid(view, shown));
  const label = h('output', { class: 'small' });
  const chart = lineChart('Evenness of training over rounds', () => ({
    lines: views.map((view) => ({ entry: view.entry, x: view.rounds.map(Math.log2), y: view[state.measure] })),
    x: { title: 'round (logarithmic)', one: 'round', show: (v) => show.round(2 ** v), ticks: logRounds(rounds[last]) },
    y: { show: state.measure === 'share' ? show.percent : show.plain, tick: state.measure === 'share' ? percentTick : show.plain, floor: 0, ceiling: 1.001 },
    marker: Math.log2(shown.round),
  }), 250);
  const drawChart = redraws[redraws.length - 1];
  const tell = () => {
    label.textContent = `after round ${show.round(shown.round)}`;
    slider.setAttribute('aria-valuetext', label.textContent);
  };
  const update = () => {
    tell();
    grids.forEach((grid) => grid.draw());
    drawChart();
  };
  const move = (place) => {
    slider.value = place;
    shown.round = rounds[place];
    state.round = place === last ? null : shown.round; // at the end the slider follows a run in progress
    update();
  };
  const slider = h('input', { type: 'range', min: 0, max: last, value: start, 'aria-label': 'Round', oninput: () => move(Number(slider.value)) });
  let playing = null;
  const stop = () => { clearInterval(playing); playing = null; state.busy.delete('playing'); play.textContent = 'Play'; };
  const play = h('button', { type: 'button', onclick: () => {
    if (playing) { stop(); return; }
    let place = Number(slider.value) === last ? -1 : Number(slider.value);
    play.textContent = 'Pause';
    state.busy.add('playing');
    playing = setInterval(() => {
      place += 1;
      move(Math.min(place, last));
      if (place >= last) stop();
    }, 350);
  } }, 'Play');
  tell();
  const short = views.filter((view) => view.rounds[view.rounds.length - 1] < data.runs.find((run) => run.entry === view.entry).done);
  return [
    h('p', { class: 'intro' }, 'One layer of the server’s model, a cell for each weight (or block of weights): rows are units out, columns units in. Colour says how often the weight was part of what a client trained. Move the slider to see it from the first round on.'),
    h('div', { class: 'controls' }, choose('Layer', names.map((name) => {
      const shape = views.map((view) => view.layers[name]).find(Boolean).shape;
      return `${name} (${shape[0]} × ${shape[1]})`;
    }), (place) => { state.layer = names[place]; shown.layer = names[place]; update(); }, names.indexOf(shown.layer)), play, slider, label),
    h('div', { class: 'grids' }, grids.map((grid) => grid.host)),
    h('p', { class: 'note' }, heatScale()),
    h('div', { class: 'head sub' }, h('h3', {}, 'How evenly, and how much of the model'),
      segments('Measure', [['evenness', 'Evenness'], ['share', 'Share ever trained']], state.measure, (value) => { state.measure = value; drawChart(); })),
    chart,
    h('p', { class: 'note' }, 'Counted again from the settings and the clients each round wrote down (first seed of each line), so it is what was trained, not a model of it. Evenness is Jain’s index over all weights: 1 when every weight was trained equally often. Large matrices are shown in cells, each the mean over its weights.',
      views[0].left_out > 0 && ` ${plural(views[0].left_out, 'layer')} of ${plural(views[0].left_out + Object.keys(views[0].layers).length, 'layer')} left out.`,
      short.length > 0 && ` Not counted to the end: ${short.map((view) => `${data.entries[view.entry].label} up to round ${view.rounds[view.rounds.length - 1]}`).join(', ')}.`),
    reasons];
}
function logRounds(last) {
  const ticks = [];
  for (let p = 1; p <= last; p *= 10) ticks.push(...[1, 2, 5].map((m) => m * p).filter((v) => v <= last));
  return ticks.map(Math.log2);
}
