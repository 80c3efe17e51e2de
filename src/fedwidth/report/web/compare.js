// What the comparison comes to: sentences, the grid of a sweep, what it took to reach an accuracy, accuracy by class.
function standingSection() {
  const { leading, sentences, yardsticks, rows } = data.comparison;
  const gains = rows.map((row, entry) => ({ ...row, entry })).filter((row) => row.gain);
  const said = [leading, ...sentences].filter(Boolean);
  return [
    said.length > 0 && h('ul', { class: 'said' }, said.map((text) => h('li', {}, text))),
    gains.length > 0 && [
      h('h3', { class: 'sub' }, 'Gain over what needs no method for unequal devices'),
      h('p', { class: 'intro' }, `${data.measure.percent ? `Points of ${data.measure.title} above` : `How much better in ${data.measure.title} than`} the best yardstick, seed by seed, with the 95 % interval where there is more than one seed. Yardsticks: only devices that can hold the server’s model (exclude), the smallest model for all, and, where nobody has full width, a server model as wide as the widest device (capped).`),
      h('ul', { class: 'said' }, yardsticks.map((text) => h('li', {}, text))),
      h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Gains' }, h('table', { id: 'gain' },
        h('thead', {}, h('tr', {}, ['Run', 'Best yardstick'].map((t) => h('th', { class: 'text', scope: 'col' }, t)), [`Its ${data.measure.title}`, 'Gain', 'Decided'].map((t) => h('th', { scope: 'col' }, t)))),
        h('tbody', {}, gains.map((row) => h('tr', {}, h('td', { class: 'text' }, swatchInline(row.entry), data.entries[row.entry].label), h('td', { class: 'text' }, row.over),
          h('td', {}, show.score(data.entries[row.yardsticks[row.over]].accuracy.mean)), h('td', {}, row.gain), h('td', {}, row.verdict)))))),
    ]];
}

function gridSection() {
  const { across, down, columns, rows, cells } = data.grid;
  const by = data.entries.some((entry) => known(entry.validation.mean)) ? 'validation' : 'accuracy';
  const value = (place) => (place === null ? NaN : data.entries[place][by].mean);
  const found = cells.flat().map(value).filter(known);
  const [low, high] = [Math.min(...found), Math.max(...found)];
  const cell = (place) => {
    const mean = value(place);
    const td = h('td', { title: place === null ? 'not run' : data.entries[place].label }, known(mean) ? [show.score(mean), show.spread(data.entries[place][by])] : '–');
    if (known(mean)) td.style.background = `color-mix(in srgb, var(--c0) ${Math.round(8 + (high > low ? (37 * (data.measure.higher_is_better ? mean - low : high - mean)) / (high - low) : 20))}%, transparent)`;
    if (place === data.comparison.lead) td.classList.add('best');
    return td;
  };
  return [
    h('h3', { class: 'sub' }, 'The grid'),
    h('p', { class: 'intro' }, `${by === 'validation' ? 'Validation' : 'Test'} ${data.measure.title}, mean and standard deviation over seeds; the frame marks the best by it.`),
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Grid of the sweep' }, h('table', { id: 'grid' },
      h('thead', {}, h('tr', {}, (down.length ? down : ['']).map((name) => h('th', { class: 'text', scope: 'col' }, name)), columns.map((name) => h('th', { scope: 'col' }, `${across} = ${name}`)))),
      h('tbody', {}, cells.map((line, at) => h('tr', {}, (down.length ? rows[at] : ['']).map((name) => h('th', { class: 'text', scope: 'row' }, name)), line.map(cell))))))];
}

function reachedSection() {
  const { targets, rows } = data.reached;
  if (!targets.length) return null;
  if (state.target === null || !targets.includes(state.target)) {
    const most = (target) => rows.filter((row) => row[targets.indexOf(target)]).length;
    state.target = targets.filter((target) => most(target) >= rows.length / 2).pop() ?? targets[0];
  }
  const simulated = rows.some((row) => row.some((found) => found && known(found.device_seconds)));
  const tbody = h('tbody');
  const fillRows = () => {
    const at = targets.indexOf(state.target);
    const order = rows.map((row, entry) => ({ entry, found: row[at] })).sort((a, b) => (a.found ? a.found.round : Infinity) - (b.found ? b.found.round : Infinity) || a.entry - b.entry);
    tbody.replaceChildren(...order.map(({ entry, found }) => h('tr', {}, h('td', { class: 'text' }, swatchInline(entry), data.entries[entry].label),
      found ? [h('td', {}, show.round(found.round)), h('td', {}, show.bytes(found.sent)), h('td', {}, show.time(found.seconds)), simulated && h('td', {}, show.time(found.device_seconds))]
        : [h('td', { colspan: simulated ? 4 : 3 }, 'not reached')])));
  };
  fillRows();
  return [
    h('div', { class: 'head sub' }, h('h3', {}, `What it took to reach a ${data.measure.title} of`), segments(`${titled()} to reach`, targets.map((target) => [String(target), show.score(target, 0)]), String(state.target), (value) => { state.target = Number(value); fillRows(); })),
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Rounds and time to a ${data.measure.title}` }, h('table', { id: 'reached' },
      h('thead', {}, h('tr', {}, h('th', { class: 'text', scope: 'col' }, 'Run'), ['Rounds', 'Sent, both ways', 'Training time', ...(simulated ? ['Device time, simulated'] : [])].map((t) => h('th', { scope: 'col' }, t)))), tbody)),
    h('p', { class: 'note' }, 'Until the mean over seeds was first measured there; it is only known at evaluated rounds.')];
}

function classesSection() {
  if (!data.classes) return null;
  const { rows } = data.classes;
  const shown = Math.max(...rows.map((row) => row.means.length));
  const all = Math.max(...rows.map((row) => row.classes));
  const cell = (mean) => {
    const td = h('td', {}, known(mean) ? show.percent(mean, 0) : '–');
    if (known(mean)) td.style.background = `color-mix(in srgb, var(--c0) ${Math.round(45 * mean)}%, transparent)`;
    return td;
  };
  return [
    h('h3', { class: 'sub' }, 'Test accuracy by class'),
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Accuracy by class' }, h('table', { id: 'classes' },
      h('thead', {}, h('tr', {}, h('th', { class: 'text', scope: 'col' }, 'Run'), Array.from({ length: shown }, (_, at) => h('th', { scope: 'col' }, at)))),
      h('tbody', {}, rows.map((row) => h('tr', {}, h('td', { class: 'text' }, swatchInline(row.entry), data.entries[row.entry].label), row.means.map(cell)))))),
    all > shown && h('p', { class: 'note' }, `The first ${shown} of ${all} classes.`)];
}
