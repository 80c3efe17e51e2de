// What was compared, who gains, and devices.
function rankingSection() {
  const tested = data.entries.some((entry) => known(entry.accuracy.mean));
  const scored = data.entries.map((entry) => (tested ? entry.accuracy : entry.validation));
  const order = data.entries.map((_, place) => place).filter((place) => known(scored[place].mean))
    .sort((a, b) => better(scored[a].mean, scored[b].mean));
  const rest = data.entries.filter((_, place) => !known(scored[place].mean));
  const most = 16;
  const shown = order.slice(0, most);
  const host = h('div', { class: 'figure' });
  if (shown.length) redraws.push(() => {
    const width = Math.max(260, host.clientWidth);
    const narrow = width < 620;
    const row = narrow ? 46 : 32;
    const box = { left: narrow ? 4 : Math.min(300, width * 0.32), right: width - (narrow ? 8 : 120) };
    const values = shown.flatMap((place) => [scored[place].low, scored[place].high]);
    let [low, high] = [0, 1];
    if (!state.whole || !data.measure.percent) {
      [low, high] = [Math.min(...values), Math.max(...values)];
      const slack = Math.max((high - low) * 0.08, data.measure.percent ? 0.005 : Math.abs(high) * 0.05 || 1);
      [low, high] = data.measure.percent ? [Math.max(0, low - slack), Math.min(1, high + slack)] : [low - slack, high + slack];
    }
    const px = (v) => box.left + ((v - low) / (high - low)) * (box.right - box.left);
    const tall = shown.length * row + 26;
    const ticks = niceTicks(low, high, narrow ? 4 : 6);
    const svg = s('svg', { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: 'img', 'aria-label': `Final ${tested ? 'test' : 'validation'} ${data.measure.title}: ${shown.map((place) => `${data.entries[place].label} ${show.score(scored[place].mean)}`).join(', ')}` });
    svg.append(...ticks.flatMap((v) => [
      s('line', { class: 'gridline', x1: px(v), x2: px(v), y1: 0, y2: tall - 22 }),
      s('text', { x: px(v), y: tall - 6, 'text-anchor': 'middle' }, scoreTick(v, ticks.length > 1 ? ticks[1] - ticks[0] : 1))]));
    shown.forEach((place, at) => {
      const { label } = data.entries[place];
      const accuracy = scored[place];
      const y = at * row + (narrow ? 34 : row / 2);
      const words = `${show.score(accuracy.mean)}${show.spread(accuracy)}`;
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
    h('p', { class: 'intro' }, `${tested ? 'Test' : 'Validation'} ${data.measure.title} of the server’s model after the last round${data.measure.higher_is_better ? '' : ', lower is better'}`, seeds > 1 ? ': mean, ± standard deviation, and the range over seeds.' : '.',
      ` ${first.model ? `Model ${first.model}` : 'Model not recorded'}, ${first.data}${first.partition ? ` split ${first.partition}` : ''}${first.clients ? ` over ${plural(first.clients, 'client')}` : ''}${first.per_round ? `, ${first.per_round} a round` : ''}.`),
    shown.length ? [h('div', { class: 'controls' }, wholeAxis()), host] : h('p', {}, `No ${data.measure.title} was measured yet.`),
    order.length > most && h('p', { class: 'note' }, `The ${most} with the best means of ${order.length}; all of them are in the table below.`),
    rest.length > 0 && h('p', { class: 'note' }, `Without a final ${data.measure.title}: ${rest.map((entry) => entry.label).join(', ')}.`),
    answers.length > 0 && h('p', { class: 'note' }, 'Published numbers: ', answers.map((entry, at) => `${at ? '; ' : ''}${entry.label}: ${entry.answers}`), '.')];
}

function gainsSection() {
  const widths = data.widths.views;
  const gains = data.gains.views;
  const whole = data.widths.whole.map((entry) => data.entries[entry].label);
  const validated = data.widths.validated.map((entry) => data.entries[entry].label);
  const ticks = [...new Set(widths.flatMap((view) => view.levels.map((level) => level.capacity)))].sort((a, b) => a - b);
  const panels = gains.slice(0, 12);
  return [
    h('h3', {}, `${titled()} on each client’s own data, by what its device can afford`),
    panels.length
      ? [h('p', { class: 'intro' }, `How many clients (height) have which ${data.measure.title} (left to right). The dot is the mean, the bar the middle half.`),
        h('div', { class: 'panels' }, panels.map(gainsPanel)),
        gains.length > 12 && h('p', { class: 'note' }, `The first 12 of ${gains.length} entries.`)]
      : h('p', { class: 'intro' }, 'Not measured: it needs a finished run with evaluation.local.'),
    h('h3', { class: 'sub' }, `${titled()} of the sub-model at each width`),
    widths.length
      ? lineChart(`${titled()} of the sub-model at each width`, () => ({
        lines: widths.map((view) => ({
          entry: view.entry, x: view.levels.map((level) => Math.log2(level.capacity)), y: view.levels.map((level) => level.mean),
          low: view.levels.some((level) => level.count > 1) ? view.levels.map((level) => level.low) : null, high: view.levels.map((level) => level.high),
        })),
        x: { title: 'width, as a share of the server’s model', one: 'width', show: (v) => show.capacity(2 ** v), ticks: ticks.map(Math.log2) },
        y: scoreAxis(),
      }), 280)
      : h('p', { class: 'intro' }, whole.length ? 'Nothing to show.' : 'Not measured: name the widths in evaluation.capacities.'),
    togetherTable(),
    validated.length > 0 && h('p', { class: 'note' }, `On validation samples, as the test set was not looked at: ${validated.join(', ')}.`),
    whole.length > 0 && h('p', { class: 'note' }, `Always trained whole, so without sub-models: ${whole.join(', ')}.`)];
}

function togetherTable() {
  const rows = data.comparison.rows.map((row, entry) => ({ ...row.together, entry })).filter((row) => row.which);
  if (!rows.length) return null;
  const gained = rows.some((row) => row.gain);
  return [
    h('h3', { class: 'sub' }, 'Widths that answer together'),
    h('p', { class: 'intro' }, `The mean answer of one sub-model of each width, or of those that validation samples choose, which may be one.${gained ? ' Gains are over the yardsticks of the run.' : ''}`),
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Widths that answer together' }, h('table', { id: 'together' },
      h('thead', {}, h('tr', {}, ['Run', 'Which'].map((t) => h('th', { class: 'text', scope: 'col' }, t)), [titled(), ...(gained ? ['Gain', 'Decided'] : [])].map((t) => h('th', { scope: 'col' }, t)))),
      h('tbody', {}, rows.map((row) => h('tr', {}, h('td', { class: 'text' }, swatchInline(row.entry), data.entries[row.entry].label), h('td', { class: 'text' }, row.which),
        h('td', {}, row.accuracy), gained && [h('td', {}, row.gain ? `${row.gain} over ${row.over}` : '–'), h('td', {}, row.verdict || '–')])))))];
}

function gainsPanel(view) {
  const host = h('div', { class: 'figure' });
  const plot = h('div');
  const entry = data.entries[view.entry];
  host.append(entryHead(view.entry), plot);
  const tip = tooltip(host);
  const words = (level) => [
    h('b', {}, `width ${show.capacity(level.capacity)}, ${plural(level.clients, 'client')}`),
    h('div', {}, `mean ${show.score(level.mean)}, median ${show.score(level.quantiles[2])}`),
    h('div', {}, `middle half ${show.score(level.quantiles[1])} – ${show.score(level.quantiles[3])}`),
    h('div', {}, `lowest ${show.score(level.quantiles[0])}, highest ${show.score(level.quantiles[4])}`)];
  let chosen = -1;
  redraws.push(() => {
    const width = Math.max(220, host.clientWidth);
    const row = 40;
    const box = { left: 46, right: width - 8 };
    const tall = view.levels.length * row + 22;
    const { low, high } = data.gains;
    const px = (v) => box.left + ((v - low) / (high - low)) * (box.right - box.left);
    const svg = s('svg', { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: 'img', tabindex: 0, 'aria-label': `${entry.label}: ${view.levels.map((level) => `width ${show.capacity(level.capacity)} mean ${show.score(level.mean)}`).join(', ')}. Arrow keys read values.` });
    const point = (at, x) => {
      chosen = Math.max(0, Math.min(view.levels.length - 1, at));
      tip.show(x, plot.offsetTop + (chosen + 1) * row, words(view.levels[chosen]));
    };
    svg.addEventListener('pointermove', (event) => {
      const area = svg.getBoundingClientRect();
      point(Math.floor((event.clientY - area.top) / row), event.clientX - area.left);
    });
    svg.addEventListener('keydown', (event) => {
      const move = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      point(chosen + move, box.left);
      say(words(view.levels[chosen]).map((part) => part.textContent).join(', '));
    });
    for (const name of ['pointerleave', 'blur']) svg.addEventListener(name, () => { chosen = -1; tip.hide(); });
    svg.append(...[low, (low + high) / 2, high].flatMap((v) => [
      s('line', { class: 'gridline', x1: px(v), x2: px(v), y1: 0, y2: tall - 20 }),
      s('text', { x: px(v), y: tall - 5, 'text-anchor': v === high ? 'end' : 'middle' }, data.measure.percent ? `${Math.round(1000 * v) / 10} %` : scoreTick(v))]));
    view.levels.forEach((level, at) => {
      const base = at * row + row - 7;
      const top = Math.max(...level.bins);
      const step = (box.right - box.left) / level.bins.length;
      const bars = level.bins.map((count, bin) => (count ? `M${(box.left + bin * step + 0.5).toFixed(1)},${base}v${(-Math.max(1.5, (count / top) * (row - 12))).toFixed(1)}h${(step - 1).toFixed(1)}V${base}z` : '')).join('');
      const [, lower, , upper] = level.quantiles;
      svg.append(
        s('g', {},
          s('rect', { x: 0, y: at * row, width, height: row, fill: 'transparent' }),
          s('text', { class: 'strong', x: box.left - 8, y: base - 6, 'text-anchor': 'end' }, show.capacity(level.capacity)),
          s('path', { d: bars, fill: colour(view.entry), opacity: 0.45 }),
          s('line', { x1: px(lower), x2: px(upper), y1: base + 3, y2: base + 3, stroke: colour(view.entry), 'stroke-width': 3, 'stroke-linecap': 'round' }),
          s('circle', { cx: px(level.mean), cy: base + 3, r: 4, fill: colour(view.entry), stroke: 'var(--surface)', 'stroke-width': 1.5 })));
    });
    plot.replaceChildren(svg);
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
        costed && [h('td', {}, show.count(level.parameters)), h('td', {}, show.percent(level.share, 1)), h('td', {}, show.bytes(level.bytes)), h('td', {}, show.bytes(level.memory)), h('td', {}, show.count(level.macs)), h('td', {}, full && full.macs ? show.percent(level.macs / full.macs, 1) : '–')]);
    });
    return h('div', { class: 'block' },
      h('h3', {}, names.slice(0, 6).join(', '), names.length > 6 && ` and ${names.length - 6} more`),
      view.levels.length > 0 && h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Devices of ${names[0]}` }, h('table', {},
        h('thead', {}, h('tr', {}, ['Width', view.counted === 'clients' ? 'Share of clients' : 'Share of client updates'].map((t) => h('th', { class: 'text', scope: 'col' }, t)), h('th', { scope: 'col' }, view.counted === 'clients' ? 'Clients' : 'Updates'),
          costed && ['Parameters', 'of full', 'Sent each way', 'Memory to train', 'Multiply-adds', 'of full'].map((t) => h('th', { scope: 'col' }, t)))),
        h('tbody', {}, rows))),
      view.width !== 1 && h('p', { class: 'note' }, `The server’s own model is ${show.capacity(view.width)} as wide as the one named; widths are shares of it.`),
      costed && full && view.mean && view.levels.length > 1 && costsTable(view, names[0]),
      known(view.sent) && h('p', { class: 'note' }, `Measured: ${show.bytes(view.sent)} sent, both ways together`, known(view.macs) && `, and ${show.count(view.macs)} multiply-adds of training`, ', per client and round.'),
      !costed && view.reason && h('p', { class: 'note' }, `What each width costs is not shown: ${view.reason}.`));
  });
}

// FedRolex Table 7: what the mix costs a client on average, between the two homogeneous cases.
function costsTable({ full, mean, smallest, levels }, name) {
  const narrowest = levels[levels.length - 1];
  const cases = [[`all at ${show.capacity(narrowest.capacity)}`, smallest], ['this mix, on average', mean], ['all at full width', full]];
  const kinds = [['Parameters', 'parameters', show.count], ['Sent each way, a round', 'bytes', show.bytes], ['Memory to train', 'memory', show.bytes], ['Multiply-adds, a sample forward', 'macs', show.count]];
  const cell = (found, key, words) => {
    const bar = h('span', { class: 'bar' });
    bar.style.width = `${Math.max(0.5, (100 * found[key]) / full[key])}%`;
    return h('td', {}, h('div', { class: 'amount' }, h('span', {}, words(found[key])), h('span', { class: 'small' }, show.percent(found[key] / full[key], found[key] < 0.1 * full[key] ? 1 : 0))), h('div', { class: 'track' }, bar));
  };
  return [
    h('h3', { class: 'sub' }, 'What a client spends, against everyone at the smallest and at the full width'),
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Costs of ${name}` }, h('table', { class: 'costs' },
      h('thead', {}, h('tr', {}, h('th', { class: 'text', scope: 'col' }, 'Per client'), cases.map(([title]) => h('th', { class: 'text', scope: 'col' }, title)))),
      h('tbody', {}, kinds.map(([title, key, words]) => h('tr', {}, h('th', { class: 'text', scope: 'row' }, title), cases.map(([, found]) => cell(found, key, words)))))))];
}
