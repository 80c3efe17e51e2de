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
function bytesOf(text) {
  const raw = atob(text);
  return Uint8Array.from(raw, (letter) => letter.charCodeAt(0));
}

function heatScale() {
  const bar = h('canvas', { width: 128, height: 1, 'aria-hidden': 'true' });
  redraws.push(() => {
    readPaint();
    const context = bar.getContext('2d');
    for (let x = 0; x < 128; x += 1) {
      context.fillStyle = `rgb(${shade((x / 127) ** 2).join(' ')})`;
      context.fillRect(x, 0, 1, 1);
    }
  });
  return h('span', { class: 'scale' }, h('span', { class: 'never' }), 'never', h('span', {}, 'rarely'), bar, 'in every client update');
}

function heatGrid(view, state) {
  const canvas = h('canvas', { role: 'img' });
  const words = h('p', { class: 'small' });
  const entry = data.entries[view.entry];
  const host = h('div', { class: 'figure' }, entryHead(view.entry), canvas, words);
  words.style.margin = '0';
  const tip = tooltip(host);
  const decoded = new Map();

  function frameAt() { // the last frame not after the slider's round
    let at = 0;
    view.rounds.forEach((round, place) => { if (round <= state.round) at = place; });
    return at;
  }
  function draw() {
    const layer = view.layers[state.layer];
    canvas.hidden = !layer;
    tip.hide();
    if (!layer) { words.textContent = 'no such layer in this model'; return; }
    if (!decoded.has(state.layer)) decoded.set(state.layer, bytesOf(layer.frames));
    const [rows, columns] = layer.cells;
    const at = frameAt();
    const cells = decoded.get(state.layer).subarray(at * rows * columns, (at + 1) * rows * columns);
    canvas.width = columns;
    canvas.height = rows;
    canvas.style.aspectRatio = String(Math.max(0.8, Math.min(6, layer.shape[1] / layer.shape[0])));
    const image = new ImageData(columns, rows);
    cells.forEach((cell, place) => {
      image.data.set([...(cell ? shade(cell / 255) : heat.never), 255], place * 4);
    });
    canvas.getContext('2d').putImageData(image, 0, 0);
    words.textContent = `${show.percent(view.share[at], view.share[at] > 0.9995 || view.share[at] < 0.0005 ? 0 : 1)} of the model trained · evenness ${show.plain(view.evenness[at])}`;
    canvas.setAttribute('aria-label', `${entry.label}, ${state.layer}, after round ${view.rounds[at]}: ${words.textContent}`);
  }
  canvas.addEventListener('pointermove', (event) => {
    const layer = view.layers[state.layer];
    const area = canvas.getBoundingClientRect();
    const [rows, columns] = layer.cells;
    const row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - area.top) / area.height) * rows)));
    const column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - area.left) / area.width) * columns)));
    const at = frameAt();
    const share = decoded.get(state.layer)[at * rows * columns + row * columns + column] / 255;
    const span = (place, cells, size) => {
      const [first, last] = [Math.floor((place * size) / cells), Math.max(0, Math.ceil(((place + 1) * size) / cells) - 1)];
      return first === last ? `${first}` : `${first}–${last}`;
    };
    const box = host.getBoundingClientRect();
    tip.show(event.clientX - box.left, event.clientY - box.top + 12, [
      h('b', {}, `out ${span(row, rows, layer.shape[0])} × in ${span(column, columns, layer.shape[1])}`),
      h('div', {}, share ? `trained in about ${show.percent(share, 0)} of ${plural(view.updates[at], 'client update')}` : 'never trained so far')]);
  });
  canvas.addEventListener('pointerleave', () => tip.hide());
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
  const start = Math.max(0, names.indexOf(views[0].first));
  const state = { layer: names[start], round: rounds[rounds.length - 1] };
  const grids = views.map((view) => heatGrid(view, state));
  const label = h('output', { class: 'small' });
  let curves = 'evenness';
  const chart = lineChart('Evenness of training over rounds', () => ({
    lines: views.map((view) => ({ entry: view.entry, x: view.rounds.map(Math.log2), y: view[curves] })),
    x: { title: 'round (logarithmic)', one: 'round', show: (v) => show.round(2 ** v), ticks: logRounds(rounds[rounds.length - 1]) },
    y: { show: curves === 'share' ? show.percent : show.plain, tick: curves === 'share' ? percentTick : show.plain, floor: 0, ceiling: 1.001 },
    marker: Math.log2(state.round),
  }), 250);
  const drawChart = redraws[redraws.length - 1];
  const update = () => {
    label.textContent = `after round ${show.round(state.round)}`;
    slider.setAttribute('aria-valuetext', label.textContent);
    grids.forEach((grid) => grid.draw());
    drawChart();
  };
  const slider = h('input', { type: 'range', min: 0, max: rounds.length - 1, value: rounds.length - 1, 'aria-label': 'Round', oninput: () => { state.round = rounds[slider.value]; update(); } });
  let playing = null;
  const stop = () => { clearInterval(playing); playing = null; play.textContent = 'Play'; };
  const play = h('button', { type: 'button', onclick: () => {
    if (playing) { stop(); return; }
    if (Number(slider.value) === rounds.length - 1) slider.value = -1;
    play.textContent = 'Pause';
    playing = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      state.round = rounds[slider.value];
      update();
      if (Number(slider.value) === rounds.length - 1) stop();
    }, 350);
  } }, 'Play');
  label.textContent = `after round ${show.round(state.round)}`;
  const short = views.filter((view) => view.rounds[view.rounds.length - 1] < data.runs.find((run) => run.entry === view.entry).done);
  return [
    h('p', { class: 'intro' }, 'One layer of the server’s model, a cell for each weight (or block of weights): rows are units out, columns units in. Colour says how often the weight was part of what a client trained. Move the slider to see it from the first round on.'),
    h('div', { class: 'controls' }, choose('Layer', names.map((name) => {
      const shape = views.map((view) => view.layers[name]).find(Boolean).shape;
      return `${name} (${shape[0]} × ${shape[1]})`;
    }), (place) => { state.layer = names[place]; update(); }, start), play, slider, label),
    h('div', { class: 'grids' }, grids.map((grid) => grid.host)),
    h('p', { class: 'note' }, heatScale()),
    h('div', { class: 'head sub' }, h('h3', {}, 'How evenly, and how much of the model'),
      segments('Measure', [['evenness', 'Evenness'], ['share', 'Share ever trained']], curves, (value) => { curves = value; drawChart(); })),
    chart,
    h('p', { class: 'note' }, 'Counted again from the settings and the clients each round wrote down (first seed of each line), so it is what was trained, not a model of it. Evenness is Jain’s index over all weights: 1 when every weight was trained equally often. Large matrices are shown in cells, each the mean over its weights.',
      short.length > 0 && ` Counted over the first rounds only: ${short.map((view) => `${data.entries[view.entry].label} to round ${view.rounds[view.rounds.length - 1]}`).join(', ')}.`),
    reasons];
}
function logRounds(last) {
  const ticks = [];
  for (let p = 1; p <= last; p *= 10) ticks.push(...[1, 2, 5].map((m) => m * p).filter((v) => v <= last));
  return ticks.map(Math.log2);
}
