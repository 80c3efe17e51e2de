// Elements, words and colours. Whatever comes from data becomes a text node or an attribute, never markup.
let data = JSON.parse(document.getElementById('data').textContent);
const LIVE = document.documentElement.dataset.live; // names the state of the data where a server has more
const SVG = 'http://www.w3.org/2000/svg';
// What the reader chose. Sections are built anew when a live page gets new data; this stays.
const state = {
  hidden: new Set(), axis: 'rounds', accuracy: 'global_accuracy', loss: null, log: 'auto',
  layer: null, round: null /* the last */, measure: 'evenness', split: null, sort: null, target: null, whole: true, open: new Set(), pointer: null, busy: new Set(),
};
let redraws = []; // of the section that is being built
const isHidden = (entry) => state.hidden.has(data.entries[entry].id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const body = (id) => document.querySelector(`#${id} .body`);
const known = (value) => typeof value === 'number' && Number.isFinite(value);
const say = (text) => { document.getElementById('said').textContent = text; };

function scaled(value, step, units) {
  let place = 0;
  while (Math.abs(value) >= step && place < units.length - 1) { value /= step; place += 1; }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toPrecision(value >= 10 ? 3 : 2)} ${units[place]}`.trim();
}
const show = {
  percent: (v, digits = 1) => (known(v) ? `${(100 * v).toFixed(digits)} %` : '–'),
  loss: (v) => (!known(v) ? '–' : Math.abs(v) >= 1e4 ? v.toExponential(1) : Math.abs(v) >= 100 ? v.toFixed(0) : v.toPrecision(3)),
  round: (v) => (known(v) ? Math.round(v).toLocaleString('en') : '–'),
  bytes: (v) => (known(v) ? scaled(v, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']) : '–'),
  count: (v) => (known(v) ? scaled(v, 1000, ['', 'k', 'M', 'G', 'T', 'P', 'E']) : '–'),
  plain: (v) => (known(v) ? v.toFixed(2) : '–'),
  time(v) {
    if (!known(v)) return '–';
    if (v < 120) return `${v < 10 ? v.toFixed(1) : Math.round(v)} s`;
    return v < 7200 ? `${Math.floor(v / 60)} min ${Math.round(v % 60)} s` : `${Math.floor(v / 3600)} h ${Math.round((v % 3600) / 60)} min`;
  },
  capacity(v) {
    if (!known(v)) return 'varying';
    const part = 1 / v;
    return v === 1 ? '1' : Math.abs(part - Math.round(part)) < 1e-6 ? `1/${Math.round(part)}` : String(v);
  },
  // The metric of the runs: a share in percent, or a number as it is.
  score: (v, digits = 1) => (data.measure.percent ? show.percent(v, digits) : show.loss(v)),
  spread: (found, digits = 1) => (!known(found.deviation) ? '' : data.measure.percent ? ` ± ${(100 * found.deviation).toFixed(digits)}` : ` ± ${show.loss(found.deviation)}`),
};
const titled = () => data.measure.title.charAt(0).toUpperCase() + data.measure.title.slice(1);
const better = (a, b) => (data.measure.higher_is_better ? b - a : a - b); // the best first
const scoreTick = (v, step) => (data.measure.percent ? percentTick(v, step) : String(Number(v.toPrecision(3))));
const scoreAxis = () => (data.measure.percent ? { show: show.score, tick: scoreTick, floor: 0, ceiling: 1, whole: state.whole } : { show: show.score, tick: scoreTick });
const percentTick = (v, step) => show.percent(v, step < 0.00099 ? 2 : step < 0.0099 ? 1 : 0);
const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const plural = (count, word) => `${Number(count).toLocaleString('en')} ${word}${count === 1 ? '' : 's'}`;

const DASHES = ['', '7 4', '2 3', '9 3 2 3', '4 2', '1 2', '12 4'];
const colour = (entry) => `var(--c${entry % 8})`;
const dash = (entry) => DASHES[Math.floor(entry / 8) % DASHES.length];
const paint = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const swatch = (entry) => s('svg', { class: 'swatch', viewBox: '0 0 22 10', 'aria-hidden': 'true' },
  s('line', { x1: 1, x2: 21, y1: 5, y2: 5, stroke: colour(entry), 'stroke-width': 3, 'stroke-dasharray': dash(entry), 'stroke-linecap': 'butt' }));

let segmentsMade = 0;
function segments(title, choices, chosen, change) {
  const name = `choice-${segmentsMade += 1}`;
  return h('div', { class: 'segments', role: 'radiogroup', 'aria-label': title }, choices.map(([value, text]) =>
    h('label', {}, h('input', { type: 'radio', name, value, checked: value === chosen, onchange: () => change(value) }), text)));
}
function choose(title, choices, change, chosen = 0) {
  const opened = () => state.busy.add('choosing'); // an open list must not be replaced under the reader's hand
  const closed = () => state.busy.delete('choosing');
  return h('label', { class: 'small' }, `${title} `, h('select', { onpointerdown: opened, onblur: closed, onchange: (event) => { closed(); change(Number(event.target.value)); } },
    choices.map((text, place) => h('option', { value: place, selected: place === chosen }, text))));
}

// Accuracies from 0 to 100 %, or only the part that has lines in it: then the axis is cut, and says so.
const wholeAxis = () => data.measure.percent && segments('Axis of accuracies', [['whole', '0 to 100 %'], ['part', 'Part of the axis']], state.whole ? 'whole' : 'part', (value) => { state.whole = value === 'whole'; redrawAll(); });

async function copy(text, button) {
  const before = button.textContent;
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // pages opened from disk may not have the clipboard
    const field = h('textarea', { class: 'unseen' });
    field.value = text;
    document.body.append(field);
    field.select();
    done = document.execCommand('copy');
    field.remove();
    button.focus();
  }
  button.textContent = done ? 'Copied' : 'Could not copy';
  say(button.textContent);
  setTimeout(() => { button.textContent = before; }, 1500);
}
const copier = (title, text) => h('button', { type: 'button', onclick: (event) => copy(text(), event.currentTarget) }, title);

function tooltip(host) {
  const tip = h('div', { class: 'tip', hidden: true });
  host.append(tip);
  return {
    show(x, y, children) {
      tip.replaceChildren(...children.filter(Boolean));
      tip.hidden = false;
      const room = host.clientWidth - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, x + 14 > room ? x - tip.offsetWidth - 14 : x + 14))}px`;
      tip.style.top = `${Math.max(0, y)}px`;
    },
    hide() { tip.hidden = true; },
  };
}
