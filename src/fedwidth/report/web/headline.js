// The first lines of the page: its title, its first sentences, the tiles and what went wrong.
function headline() {
  const { title, lead, leading, sentences, rows } = data.comparison;
  const first = data.entries[lead];
  const others = data.entries.filter((_, place) => place !== lead);
  const kinds = new Set(data.entries.map((entry) => entry.data));
  document.getElementById('title').textContent = title || (others.length
    ? `${clip(first.label, 60)} beside ${others.length === 1 ? clip(others[0].label, 60) : `${others.length} others`}, on ${[...kinds].slice(0, 3).join(', ')}`
    : `${clip(first.label, 80)} on ${first.data}`);
  const lede = [];
  if (leading) lede.push(leading);
  else if (known(first.accuracy.mean)) lede.push(`${first.label}${first.label.includes(first.title) ? '' : ` (${first.title})`} reached ${show.score(first.accuracy.mean)}${show.spread(first.accuracy)} test ${data.measure.title}${first.seeds.length > 1 ? ` over ${first.seeds.length} seeds` : ''}.`);
  else lede.push(`No ${data.measure.title} was measured yet.`);
  if (others.length) lede.push(...sentences.slice(0, 2), sentences.length > 2 ? 'More below.' : '');
  document.getElementById('lede').textContent = lede.filter(Boolean).join(' ');
  const seconds = data.runs.reduce((sum, run) => sum + (run.seconds || 0), 0);
  const tile = (value, extra, words) => h('div', { class: 'tile' }, h('b', {}, value, extra && h('small', {}, extra)), h('span', {}, words));
  const capacities = data.devices.find((view) => view.entries.includes(lead));
  const sizes = capacities ? capacities.levels.length : 0;
  document.getElementById('tiles').replaceChildren(...[
    tile(show.score(first.accuracy.mean), show.spread(first.accuracy), `test ${data.measure.title}, ${clip(first.label, 40)}`),
    rows[lead].gain ? tile(rows[lead].gain.split(' ')[0], rows[lead].gain.includes(' ') ? ` ${rows[lead].gain.slice(rows[lead].gain.indexOf(' ') + 1)}` : ' one seed', `${data.measure.percent ? 'points above' : 'better than'} the best yardstick, ${rows[lead].over}`) : '',
    known(first.local.mean) ? tile(show.score(first.local.mean), show.spread(first.local), 'on clients’ own data') : '',
    first.clients ? tile(first.clients.toLocaleString('en'), sizes ? ` of ${plural(sizes, 'size')}` : '', `devices, ${first.per_round || '?'} a round`) : '',
    tile(show.round(first.rounds), '', `rounds${first.seeds.length > 1 ? `, ${first.seeds.length} seeds` : ''}`),
    capacities && known(capacities.sent) ? tile(show.bytes(capacities.sent), '', 'sent per client and round') : '',
    tile(show.time(seconds), '', `training time of ${plural(data.runs.length, 'run')}`)].filter(Boolean));
  const troubles = data.entries.flatMap((entry) => [
    ...entry.unfinished.map((run) => `${entry.label}, seed ${run.seed}, is unfinished: round ${run.done} of ${run.rounds}.`),
    ...(entry.accuracy.lost && !entry.unfinished.length ? [`${entry.label}: the final ${data.measure.title} of ${plural(entry.accuracy.lost, 'seed')} is missing or not a number.`] : []),
    ...Object.values(entry.curves).some((curve) => curve.mean.includes(null)) ? [`${entry.label}: some measured values are not finite; the lines have gaps there.`] : [],
    ...entry.notes.map((note) => `${entry.label}: ${note}.`)]);
  const warning = document.getElementById('troubles');
  warning.replaceChildren();
  if (troubles.length) {
    warning.append(h('div', { class: 'warn', role: 'note' }, troubles.slice(0, 6).map((text) => h('div', {}, text)), troubles.length > 6 && h('div', {}, `and ${troubles.length - 6} more`)));
  }
  const privacy = data.entries.filter((entry) => entry.privacy.length);
  document.getElementById('privacy').replaceChildren(...privacy.slice(0, 6).map((entry) => h('details', { open: privacy.length === 1 }, h('summary', {}, `Privacy of ${clip(entry.label, 60)}: ${entry.privacy[0]}`),
    entry.privacy.slice(1).map((text) => h('div', {}, `${text}.`)))));
}
