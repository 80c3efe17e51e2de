// Who holds which data: clients across, labels down, shaded by how many samples of a label a client has.
const SHADES = 12; // one path for each: thousands of cells stay a dozen elements

function splitSection() {
  if (!data.splits.length) return [h('p', { class: 'intro' }, 'Not recorded: it needs a finished run with evaluation.local and at most 10,000 clients.')];
  const start = Math.max(0, data.splits.findIndex((split) => data.entries[split.entries[0]].id === state.split));
  let view = data.splits[start];
  let chosen = null; // [client, label] under the arrow keys
  const host = h('div', { class: 'figure' });
  const plot = h('div');
  const words = h('p', { class: 'note' });
  const most = h('span', {});
  const scale = h('p', { class: 'note' }, h('span', { class: 'scale' }, 'few', heatBar(), most));
  host.append(plot);
  const tip = tooltip(host);

  const held = (client) => (known(client.samples) ? plural(client.samples, 'sample') : 'samples unknown') + (known(client.capacity) ? `, width ${show.capacity(client.capacity)}` : '');
  function describe(client, label) {
    const head = `client ${client.client}`;
    if (!view.most) return [head, held(client), `labels ${clip(client.labels.join(', '), 90)}`];
    const count = client.counts[client.labels.indexOf(label)] || 0;
    const most = client.labels.map((each, at) => [client.counts[at], each]).sort((a, b) => b[0] - a[0]).slice(0, 6);
    const list = most.map(([n, each]) => `${each} (${n.toLocaleString('en')})`).join(', ');
    return [head, held(client), label < view.drawn && `label ${label}: ${count ? plural(count, 'sample') : 'none'}`,
      `${client.labels.length > 6 ? 'most of labels' : 'labels'} ${list}`].filter(Boolean);
  }

  const draw = () => {
    const width = Math.max(260, host.clientWidth);
    const { clients, drawn } = view;
    const box = { left: 58, right: width - 4, top: 4 };
    const step = (box.right - box.left) / clients.length;
    const row = Math.max(3, Math.min(20, 220 / drawn));
    const gap = step > 4 && row > 4 ? 1 : 0;
    const wide = Math.max(0.5, step - gap);
    const base = box.top + drawn * row;
    const full = Math.max(...clients.map((client) => client.samples || 0), 1);
    const cells = Array(SHADES).fill('');
    clients.forEach((client, at) => client.labels.forEach((label, place) => {
      const level = view.most ? Math.ceil(SHADES * Math.sqrt(client.counts[place] / view.most)) : SHADES;
      cells[level - 1] += `M${(box.left + at * step).toFixed(1)},${(box.top + label * row).toFixed(1)}h${wide.toFixed(1)}v${row - gap}h${-wide.toFixed(1)}z`;
    }));
    const bars = clients.map((client, at) => `M${(box.left + at * step).toFixed(1)},${base + 50}v${(-(40 * (client.samples || 0)) / full).toFixed(1)}h${wide.toFixed(1)}V${base + 50}z`).join('');
    const tall = base + 84;
    const every = drawn <= 20 ? (row < 11 ? 2 : 1) : Math.ceil(drawn / 10);
    const fillOf = (at) => (view.most ? `rgb(${shade(((at + 1) / SHADES) ** 2).join(' ')})` : 'var(--c0)');
    const mark = s('rect', { class: 'mark', width: wide, height: Math.max(1, row - gap), fill: 'none', stroke: 'var(--ink)', visibility: 'hidden' });
    const svg = s('svg', { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: 'img', tabindex: 0, 'aria-label': `Labels of ${plural(clients.length, 'client')}. Arrow keys read values.` },
      s('rect', { x: box.left, y: box.top, width: box.right - box.left, height: drawn * row, fill: 'var(--raised)' }),
      cells.map((d, at) => d && s('path', { class: 'held', d, fill: fillOf(at) })), s('path', { d: bars, fill: 'var(--c2)' }),
      clients.map((client, at) => known(client.capacity) && s('rect', { x: box.left + at * step, y: base + 54, width: wide, height: 9, fill: 'var(--c4)', opacity: 0.15 + 0.85 * Math.max(0, 1 + Math.log2(client.capacity) / 5) })),
      [...Array(drawn).keys()].filter((label) => label % every === 0).map((label) => s('text', { x: box.left - 7, y: box.top + label * row + row / 2 + 4, 'text-anchor': 'end' }, label)),
      s('text', { x: box.left - 7, y: base + 34, 'text-anchor': 'end' }, 'samples'), s('text', { x: box.left - 7, y: base + 63, 'text-anchor': 'end' }, 'width'),
      s('text', { x: (box.left + box.right) / 2, y: tall - 4, 'text-anchor': 'middle' }, 'clients'), mark);
    const point = (at, label, x, y) => {
      const client = clients[at];
      if (!client || label < 0) { leave(); return ''; }
      mark.setAttribute('x', box.left + at * step);
      mark.setAttribute('y', box.top + label * row);
      mark.setAttribute('visibility', label < drawn ? 'visible' : 'hidden');
      const texts = describe(client, label);
      tip.show(x, y + 10, texts.map((text, place) => h(place ? 'div' : 'b', {}, text)));
      return texts.join(', ');
    };
    const leave = () => { chosen = null; mark.setAttribute('visibility', 'hidden'); tip.hide(); };
    svg.addEventListener('pointermove', (event) => {
      const area = svg.getBoundingClientRect();
      const [x, y] = [event.clientX - area.left, event.clientY - area.top];
      point(Math.floor((x - box.left) / step), Math.floor((y - box.top) / row), x, y);
    });
    svg.addEventListener('keydown', (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      const within = (value, end) => Math.max(0, Math.min(end - 1, value));
      chosen = chosen ? [within(chosen[0] + move[0], clients.length), within(chosen[1] + move[1], drawn)] : [0, 0];
      say(point(...chosen, box.left + (chosen[0] + 1) * step, box.top + (chosen[1] + 1) * row));
    });
    for (const name of ['pointerleave', 'blur']) svg.addEventListener(name, leave);
    plot.replaceChildren(svg);
    scale.hidden = !view.most;
    most.textContent = `${plural(view.most, 'sample')} of one label, the most a client has`;
    const cell = view.most ? 'the stronger the colour, the more samples of it the client has' : 'a filled cell means the client has samples of it';
    words.textContent = `${clients.length < view.total ? `${clients.length} of ${view.total.toLocaleString('en')} clients, evenly spaced` : `All ${plural(view.total, 'client')}`}; ${drawn < view.labels ? `the first ${drawn} of ${view.labels} labels` : plural(view.labels, 'label')}. Rows are labels; ${cell}. Below: its number of samples, and its device’s width (the stronger the colour, the wider).`;
  };
  redraws.push(draw);
  const names = data.splits.map((split) => split.entries.map((entry) => data.entries[entry].label).slice(0, 3).join(', ') + (split.entries.length > 3 ? ` and ${split.entries.length - 3} more` : ''));
  return [
    data.splits.length > 1 && h('div', { class: 'controls' }, choose('Split of', names, (place) => {
      view = data.splits[place];
      state.split = data.entries[view.entries[0]].id;
      draw();
    }, start)),
    host, scale, words];
}
