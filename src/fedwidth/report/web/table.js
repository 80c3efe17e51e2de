// The table of all runs (sort by any column, copy as tab-separated text) and how to repeat each.
const allColumns = () => [
  ['Run', (run) => data.entries[run.entry].label, null, 'text wide'],
  ['Method', (run) => data.entries[run.entry].title, null, 'text'],
  ['Data', (run) => data.entries[run.entry].data, null, 'text'],
  ['Seed', (run) => run.seed, String],
  ['Rounds', (run) => run.done, (v, run) => (run.finished ? show.round(v) : `${show.round(v)} of ${show.round(run.rounds)}`)],
  ['Validation', (run) => run.validation, (v) => show.score(v, 2)],
  [titled(), (run) => run.accuracy, (v) => show.score(v, 2)],
  ['Best', (run) => run.best, (v) => show.score(v, 2)],
  ['Clients’ own', (run) => run.local, (v) => show.score(v, 2)],
  ['Loss', (run) => run.loss, show.loss],
  ['Sent up', (run) => run.sent_up, show.bytes],
  ['Both ways', (run) => run.sent, show.bytes],
  ['Multiply-adds', (run) => run.macs, show.count],
  ['ε', (run) => run.epsilon, (v) => (known(v) ? String(Number(v.toPrecision(4))) : '–')],
  ['Time', (run) => run.seconds, show.time],
  ['Version', (run) => run.version, null, 'text'],
  ['Folder', (run) => run.folder, null, 'text'],
];
const always = (title) => ['Run', titled(), 'Time'].includes(title);
const UNSEEN = new Set(['Folder']); // long, and told by "Repeat a run"; copied with the rest

// What is the same for every run is said once, so that the rest fits on a screen.
function splitColumns() {
  const same = ([title, value]) => !always(title) && new Set(data.runs.map(value)).size === 1 && data.runs.every((run) => run.finished);
  const text = ([title, value, words]) => { const v = value(data.runs[0]); return `${title.toLowerCase()} ${words ? words(v, data.runs[0]) : v}`; };
  const told = ([title, value]) => UNSEEN.has(title) || (!always(title) && data.runs.every((run) => value(run) === null)) || (title === 'Method' && data.entries.every((entry) => entry.label.includes(entry.title)));
  const columns = allColumns();
  const alike = data.runs.length > 1 ? columns.filter((column) => !told(column) && same(column)) : [];
  return [columns.filter((column) => !told(column) && !alike.includes(column)), alike.filter(([, value]) => value(data.runs[0]) !== '').map(text)];
}

function runsSection() {
  const [COLUMNS, alike] = splitColumns();
  const tbody = h('tbody');
  const heads = COLUMNS.map(([title, , , kind], place) => h('th', { class: kind, scope: 'col' }, h('button', { type: 'button', onclick: () => sort(place) }, title)));
  let order = data.runs.slice();
  const cell = (run, [, value, words]) => (words ? words(value(run), run) : value(run) || '–');
  const fillRows = () => tbody.replaceChildren(...order.map((run) => h('tr', {}, COLUMNS.map((column) => h('td', { class: column[3] },
    column[0] === 'Run' && swatchInline(run.entry), cell(run, column), column[0] === 'Run' && !run.finished && [' ', h('span', { class: 'badge' }, 'unfinished')])))));
  const numeric = (place) => data.runs.some((run) => known(COLUMNS[place][1](run)));
  function sort(place) {
    const first = numeric(place) && COLUMNS[place][0] !== 'Seed' ? -1 : 1;
    const title = COLUMNS[place][0];
    state.sort = { title, direction: state.sort && state.sort.title === title ? -state.sort.direction : first };
    arrange();
    say(`sorted by ${COLUMNS[place][0]}`);
  }
  function arrange() {
    order = data.runs.slice();
    const place = state.sort ? COLUMNS.findIndex(([title]) => title === state.sort.title) : -1;
    if (place >= 0) {
      const { direction } = state.sort;
      const value = COLUMNS[place][1];
      const numbers = numeric(place);
      order.sort((a, b) => {
        const [left, right] = [value(a), value(b)];
        if (!numbers) return direction * String(left).localeCompare(String(right));
        return known(left) && known(right) ? direction * (left - right) : known(right) - known(left); // unknown ones last
      });
      heads.forEach((head, at) => (at === place ? head.setAttribute('aria-sort', direction > 0 ? 'ascending' : 'descending') : head.removeAttribute('aria-sort')));
    }
    fillRows();
  }
  arrange();
  const clean = (text) => String(text).replace(/[\t\r\n]+/g, ' ');
  const asText = () => [allColumns().map(([title]) => title), ...order.map((run) => allColumns().map(([, value]) => { const v = value(run); return v === null ? '' : clean(v); }))].map((row) => row.join('\t')).join('\n');
  return [
    h('div', { class: 'controls' }, h('span', { class: 'small' }, `${plural(data.runs.length, 'run')}${alike.length ? `, all with ${alike.join(', ')}` : ''}. Press a heading to sort.`), copier('Copy table', asText)),
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table of all runs' }, h('table', { id: 'table' }, h('thead', {}, h('tr', {}, heads)), tbody))];
}

function repeatSection() {
  return [
    h('p', { class: 'intro' }, 'Equal settings and an equal seed give equal results. The paths are as seen from where this report was made; the configuration below each command is the whole of it.'),
    data.runs.map((run) => h('details', { open: state.open.has(run.folder), ontoggle: (event) => (event.currentTarget.open ? state.open.add(run.folder) : state.open.delete(run.folder)) },
      h('summary', {}, swatchInline(run.entry), ` ${data.entries[run.entry].label}, seed ${run.seed}`),
      h('pre', { tabindex: 0 }, run.command), copier('Copy command', () => run.command),
      h('pre', { tabindex: 0 }, run.config || 'config.toml could not be read'), copier('Copy config.toml', () => run.config)))];
}
