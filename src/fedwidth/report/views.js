// What was compared, who gains, devices, and who holds which data.
function rankingSection() {
  const order = data.entries.map((_, place) => place).filter((place) => known(data.entries[place].accuracy.mean))
    .sort((a, b) => data.entries[b].accuracy.mean - data.entries[a].accuracy.mean);
  const rest = data.entries.filter((entry) => !known(entry.accuracy.mean));
  const most = 16;
  const shown = order.slice(0, most);
  const host = h('div', { class: 'figure' });
  redraws.push(() => {
    const width = Math.max(260, host.clientWidth);
    const narrow = width < 620;
    const row = narrow ? 46 : 32;
    const box = { left: narrow ? 4 : Math.min(300, width * 0.32), right: width - (narrow ? 8 : 120) };
    const values = shown.flatMap((place) => [data.entries[place].accuracy.low, data.entries[place].accuracy.high]);
    let [low, high] = [Math.min(...values), Math.max(...values)];
    const slack = Math.max((high - low) * 0.08, 0.005);
    [low, high] = [Math.max(0, low - slack), Math.min(1, high + slack)];
    const px = (v) => box.left + ((v - low) / (high - low)) * (box.right - box.left);
    const tall = shown.length * row + 26;
    const ticks = niceTicks(low, high, narrow ? 4 : 6);
    const svg = s('svg', { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: 'img', 'aria-label': `Final test accuracy: ${shown.map((place) => `${data.entries[place].label} ${show.percent(data.entries[place].accuracy.mean)}`).join(', ')}` });
    svg.append(...ticks.flatMap((v) => [
      s('line', { class: 'gridline', x1: px(v), x2: px(v), y1: 0, y2: tall - 22 }),
      s('text', { x: px(v), y: tall - 6, 'text-anchor': 'middle' }, percentTick(v, ticks.length > 1 ? ticks[1] - ticks[0] : 1))]));
    shown.forEach((place, at) => {
      const { accuracy, label } = data.entries[place];
      const y = at * row + (narrow ? 34 : row / 2);
      const words = `${show.percent(accuracy.mean)}${show.spread(accuracy)}`;
      svg.append(
        s('text', { class: 'strong', x: narrow ? 4 : box.left - 14, y: narrow ? y - 14 : y + 4.5, 'text-anchor': narrow ? 'start' : 'end' }, clip(label, narrow ? 34 : 38)),
        s('text', { class: 'strong', x: width - 4, y: narrow ? y - 14 : y + 4.5, 'text-anchor': 'end' }, words),
        s('line', { x1: box.left, x2: px(accuracy.mean), y1: y, y2: y, stroke: colour(place), 'stroke-width': 1, opacity: 0.35 }),
        s('line', { x1: px(accuracy.low), x2: px(accuracy.high), y1: y, y2: y, stroke: colour(place), 'stroke-width': 6, opacity: 0.3, 'stroke-linecap': 'round' }),
        s('circle', { cx: px(accuracy.mean), cy: y, r: 5.5, fill: colour(place) }));
    });
    host.replaceChildren(svg);
  });
  const seeds = Math.max(...data.entries.map((entry) => entry.seeds.length));
  const first = data.entries[0];
  const answers = data.entries.filter((entry) => entry.answers);
  return [
    h('p', { class: 'intro' }, `Test accuracy of the server’s model after the last round`, seeds > 1 ? ': mean, ± standard deviation, and the range over seeds.' : '.',
      ` ${first.model ? `Model ${first.model}` : 'Model not recorded'}, ${first.data}${first.partition ? ` split ${first.partition}` : ''}${first.clients ? ` over ${plural(first.clients, 'client')}` : ''}${first.per_round ? `, ${first.per_round} a round` : ''}.`),
    shown.length ? host : h('p', {}, 'No accuracy was measured yet.'),
    order.length > most && h('p', { class: 'note' }, `The best ${most} of ${order.length}; all of them are in the table below.`),
    rest.length > 0 && h('p', { class: 'note' }, `Without a final accuracy: ${rest.map((entry) => entry.label).join(', ')}.`),
    answers.length > 0 && h('p', { class: 'note' }, 'Published numbers: ', answers.map((entry, at) => `${at ? '; ' : ''}${entry.label}: ${entry.answers}`), '.')];
}

function gainsSection() {
  const widths = data.widths.views;
  const gains = data.gains.views;
  const whole = data.widths.whole.map((entry) => data.entries[entry].label);
  const ticks = [...new Set(widths.flatMap((view) => view.levels.map((level) => level.capacity)))].sort((a, b) => a - b);
  const panels = gains.slice(0, 12);
  return [
    h('h3', {}, 'Accuracy on each client’s own data, by what its device can afford'),
    panels.length
      ? [h('p', { class: 'intro' }, 'How many clients (height) reach which accuracy (left to right). The dot is the mean, the bar the middle half.'),
        h('div', { class: 'panels' }, panels.map(gainsPanel)),
        gains.length > 12 && h('p', { class: 'note' }, `The first 12 of ${gains.length} entries.`)]
      : h('p', { class: 'intro' }, 'Not measured: it needs a finished run with evaluation.local.'),
    h('h3', { class: 'sub' }, 'Accuracy of the sub-model at each width'),
    widths.length
      ? lineChart('Accuracy of the sub-model at each width', () => ({
        lines: widths.map((view) => ({
          entry: view.entry, x: view.levels.map((level) => Math.log2(level.capacity)), y: view.levels.map((level) => level.mean),
          low: view.levels.some((level) => level.count > 1) ? view.levels.map((level) => level.low) : null, high: view.levels.map((level) => level.high),
        })),
        x: { title: 'width, as a share of the server’s model', one: 'width', show: (v) => show.capacity(2 ** v), ticks: ticks.map(Math.log2) },
        y: { show: show.percent, tick: percentTick, floor: 0, ceiling: 1 },
      }), 280)
      : h('p', { class: 'intro' }, whole.length ? 'Nothing to show.' : 'Not measured: name the widths in evaluation.capacities.'),
    whole.length > 0 && h('p', { class: 'note' }, `Always trained whole, so without sub-models: ${whole.join(', ')}.`)];
}
function gainsPanel(view) {
  const host = h('div', { class: 'figure' });
  const entry = data.entries[view.entry];
  redraws.push(() => {
    const width = Math.max(220, host.clientWidth);
    const row = 40;
    const box = { left: 46, right: width - 8 };
    const tall = view.levels.length * row + 22;
    const { low } = data.gains;
    const px = (v) => box.left + ((v - low) / (1 - low)) * (box.right - box.left);
    const svg = s('svg', { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: 'img', 'aria-label': `${entry.label}: ${view.levels.map((level) => `capacity ${show.capacity(level.capacity)} mean ${show.percent(level.mean)}`).join(', ')}` });
    svg.append(...[low, (low + 1) / 2, 1].flatMap((v) => [
      s('line', { class: 'gridline', x1: px(v), x2: px(v), y1: 0, y2: tall - 20 }),
      s('text', { x: px(v), y: tall - 5, 'text-anchor': v === 1 ? 'end' : 'middle' }, `${Math.round(1000 * v) / 10} %`)]));
    view.levels.forEach((level, at) => {
      const base = at * row + row - 7;
      const top = Math.max(...level.bins);
      const step = (box.right - box.left) / level.bins.length;
      const bars = level.bins.map((count, bin) => (count ? `M${(box.left + bin * step + 0.5).toFixed(1)},${base}v${(-Math.max(1.5, (count / top) * (row - 12))).toFixed(1)}h${(step - 1).toFixed(1)}V${base}z` : '')).join('');
      const [, lower, , upper] = level.quantiles;
      svg.append(
        s('g', {}, s('title', {}, `capacity ${show.capacity(level.capacity)}: ${plural(level.clients, 'client')}, mean ${show.percent(level.mean)}, middle half ${show.percent(lower)} to ${show.percent(upper)}, lowest ${show.percent(level.quantiles[0])}`),
          s('rect', { x: 0, y: at * row, width, height: row, fill: 'transparent' }),
          s('text', { class: 'strong', x: box.left - 8, y: base - 6, 'text-anchor': 'end' }, show.capacity(level.capacity)),
          s('path', { d: bars, fill: colour(view.entry), opacity: 0.45 }),
          s('line', { x1: px(lower), x2: px(upper), y1: base + 3, y2: base + 3, stroke: colour(view.entry), 'stroke-width': 3, 'stroke-linecap': 'round' }),
          s('circle', { cx: px(level.mean), cy: base + 3, r: 4, fill: colour(view.entry), stroke: 'var(--surface)', 'stroke-width': 1.5 })));
    });
    host.replaceChildren(entryHead(view.entry), svg);
  });
  return host;
}

function devicesSection() {
  return data.devices.map((view) => {
    const names = view.entries.map((entry) => data.entries[entry].label);
    const total = view.levels.reduce((sum, level) => sum + level.count, 0);
    const costed = view.levels.some((level) => known(level.bytes));
    const full = view.full;
    const rows = view.levels.map((level) => {
      const bar = h('span', { class: 'bar' });
      bar.style.width = `${Math.max(2, (90 * level.count) / Math.max(1, total))}px`;
      return h('tr', {}, h('td', { class: 'text' }, show.capacity(level.capacity)),
        h('td', { class: 'text' }, bar, ` ${show.percent(level.count / total, 0)}`), h('td', {}, level.count.toLocaleString('en')),
        costed && [h('td', {}, show.count(level.parameters)), h('td', {}, show.percent(level.share, 1)), h('td', {}, show.bytes(level.bytes)), h('td', {}, show.count(level.macs)), h('td', {}, full && full.macs ? show.percent(level.macs / full.macs, 1) : '–')]);
    });
    const mean = (key) => view.levels.reduce((sum, level) => sum + level[key] * level.count, 0) / total;
    const smallest = view.levels[view.levels.length - 1];
    return h('div', { class: 'block' },
      h('h3', {}, names.slice(0, 6).join(', '), names.length > 6 && ` and ${names.length - 6} more`),
      view.levels.length > 0 && h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Devices of ${names[0]}` }, h('table', {},
        h('thead', {}, h('tr', {}, ['Width', view.counted === 'clients' ? 'Share of clients' : 'Share of client updates'].map((t) => h('th', { class: 'text', scope: 'col' }, t)), h('th', { scope: 'col' }, view.counted === 'clients' ? 'Clients' : 'Updates'),
          costed && ['Parameters', 'of full', 'Sent each way', 'Multiply-adds', 'of full'].map((t) => h('th', { scope: 'col' }, t)))),
        h('tbody', {}, rows))),
      view.width !== 1 && h('p', { class: 'note' }, `The server’s own model is ${show.capacity(view.width)} as wide as the one named; widths are shares of it.`),
      costed && full && view.levels.length > 1 && h('p', { class: 'note' }, `Per client the mix sends ${show.bytes(mean('bytes'))} each way a round on average: ${show.percent(mean('bytes') / full.bytes, 0)} of what all clients at full width would (${show.bytes(full.bytes)}), ${(mean('bytes') / smallest.bytes).toFixed(1)} times what all at ${show.capacity(smallest.capacity)} would (${show.bytes(smallest.bytes)}). Multiply-adds are of one forward pass of one sample: ${show.count(mean('macs'))} on average, against ${show.count(full.macs)} and ${show.count(smallest.macs)}.`),
      known(view.sent) && h('p', { class: 'note' }, `Measured: ${show.bytes(view.sent)} sent, both ways together`, known(view.macs) && `, and ${show.count(view.macs)} multiply-adds of training`, ', per client and round.'),
      !costed && view.reason && h('p', { class: 'note' }, `What each width costs is not shown: ${view.reason}.`));
  });
}

function splitSection() {
  if (!data.splits.length) return [h('p', { class: 'intro' }, 'Not recorded: it needs a finished run with evaluation.local and at most 10,000 clients.')];
  let view = data.splits[0];
  const host = h('div', { class: 'figure' });
  const plot = h('div');
  const words = h('p', { class: 'note' });
  host.append(plot);
  const tip = tooltip(host);
  const draw = () => {
    const width = Math.max(260, host.clientWidth);
    const { clients, drawn } = view;
    const box = { left: 58, right: width - 4, top: 4 };
    const step = (box.right - box.left) / clients.length;
    const row = Math.max(3, Math.min(20, 220 / drawn));
    const gap = step > 4 && row > 4 ? 1 : 0;
    const base = box.top + drawn * row;
    const most = Math.max(...clients.map((client) => client.samples || 0), 1);
    const cells = clients.map((client, at) => client.labels.map((label) => `M${(box.left + at * step).toFixed(1)},${(box.top + label * row).toFixed(1)}h${Math.max(0.5, step - gap).toFixed(1)}v${row - gap}h${-Math.max(0.5, step - gap).toFixed(1)}z`).join('')).join('');
    const bars = clients.map((client, at) => `M${(box.left + at * step).toFixed(1)},${base + 50}v${(-(40 * (client.samples || 0)) / most).toFixed(1)}h${Math.max(0.5, step - gap).toFixed(1)}V${base + 50}z`).join('');
    const tall = base + 84;
    const every = drawn <= 20 ? (row < 11 ? 2 : 1) : Math.ceil(drawn / 10);
    const svg = s('svg', { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: 'img', 'aria-label': `Labels of ${clients.length} clients` },
      s('rect', { x: box.left, y: box.top, width: box.right - box.left, height: drawn * row, fill: 'var(--raised)' }),
      s('path', { d: cells, fill: 'var(--c0)' }), s('path', { d: bars, fill: 'var(--c2)' }),
      clients.map((client, at) => known(client.capacity) && s('rect', { x: box.left + at * step, y: base + 54, width: Math.max(0.5, step - gap), height: 9, fill: 'var(--c4)', opacity: 0.15 + 0.85 * Math.max(0, 1 + Math.log2(client.capacity) / 5) })),
      [...Array(drawn).keys()].filter((label) => label % every === 0).map((label) => s('text', { x: box.left - 7, y: box.top + label * row + row / 2 + 4, 'text-anchor': 'end' }, label)),
      s('text', { x: box.left - 7, y: base + 34, 'text-anchor': 'end' }, 'samples'), s('text', { x: box.left - 7, y: base + 63, 'text-anchor': 'end' }, 'width'),
      s('text', { x: (box.left + box.right) / 2, y: tall - 4, 'text-anchor': 'middle' }, 'clients'));
    svg.addEventListener('pointermove', (event) => {
      const area = svg.getBoundingClientRect();
      const client = clients[Math.floor((event.clientX - area.left - box.left) / step)];
      if (!client) { tip.hide(); return; }
      const labels = client.labels.join(', ');
      tip.show(event.clientX - area.left, event.clientY - area.top + 10, [h('b', {}, `client ${client.client}`), h('div', {}, `${known(client.samples) ? plural(client.samples, 'sample') : 'samples unknown'}${known(client.capacity) ? `, width ${show.capacity(client.capacity)}` : ''}`), h('div', {}, `labels ${clip(labels, 90)}`)]);
    });
    svg.addEventListener('pointerleave', () => tip.hide());
    plot.replaceChildren(svg);
    words.textContent = `${clients.length < view.total ? `${clients.length} of ${view.total.toLocaleString('en')} clients, evenly spaced` : `All ${plural(view.total, 'client')}`}; ${drawn < view.labels ? `the first ${drawn} of ${view.labels} labels` : plural(view.labels, 'label')}. Rows are labels; a filled cell means the client has samples of it. Below: its number of samples, and its device’s width (the stronger the colour, the wider).`;
  };
  redraws.push(draw);
  const names = data.splits.map((split) => split.entries.map((entry) => data.entries[entry].label).slice(0, 3).join(', ') + (split.entries.length > 3 ? ` and ${split.entries.length - 3} more` : ''));
  return [
    data.splits.length > 1 && h('div', { class: 'controls' }, choose('Split of', names, (place) => { view = data.splits[place]; draw(); })),
    host, words];
}
