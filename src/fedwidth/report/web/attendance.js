// Who is in, late, refused or in quarantine, and why: for whoever runs a deployment, and for runs with absentees.
const BAD = { late: 1, gone: 1, refused: 2, quarantined: 2, revoked: 2 };
function attendanceSection() {
  const section = document.getElementById('attendance');
  section.hidden = !data.attendance.length;
  document.querySelector('.toc a[href="#attendance"]').parentNode.hidden = section.hidden;
  return data.attendance.map((view) => {
    const name = data.entries[view.entry].label;
    const rows = view.devices.map((device) => h('tr', {}, h('td', { class: 'text' }, `client ${device.client}`),
      h('td', { class: `text state-${BAD[device.state] || 0}` }, device.state, known(device.until) && ` until round ${show.round(device.until)}`),
      h('td', { class: 'text wide' }, device.why || '–'), h('td', {}, known(device.capacity) ? show.capacity(device.capacity) : '–'),
      h('td', {}, show.round(device.last_round)), h('td', {}, show.round(device.trained)), h('td', {}, show.round(device.missed))));
    const rounds = view.rounds.map((round) => h('tr', {}, h('td', {}, show.round(round.round)), h('td', {}, show.round(round.trained)),
      h('td', {}, show.round(round.absent.length)), h('td', {}, show.bytes(round.bytes)),
      h('td', { class: 'text wide' }, round.absent.map(([client, why]) => h('div', {}, `client ${client}: ${why}`)))));
    const events = view.events.map(([time, event, facts]) => h('tr', {}, h('td', { class: 'text' }, time), h('td', { class: 'text' }, event), h('td', { class: 'text wide' }, facts)));
    const table = (title, heads, body) => h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `${title} of ${name}` },
      h('table', {}, h('thead', {}, h('tr', {}, heads.map(([text, words]) => h('th', { class: words && 'text', scope: 'col' }, text)))), h('tbody', {}, body)));
    return h('div', { class: 'block' },
      h('h3', {}, name, view.deployment && ' (deployment)'),
      h('p', { class: 'lead' }, view.states.map(([state, count]) => `${show.round(count)} ${state}`).join(', '), '.'),
      table('Devices', [['Device', true], ['State', true], ['Why, when it was last asked', true], ['Width'], ['Last asked'], ['Counted'], ['Did not count']], rows),
      view.more > 0 && h('p', { class: 'note' }, `and ${show.round(view.more)} more; the worst are shown.`),
      h('h4', {}, 'The last rounds'),
      table('Rounds', [['Round'], ['Counted'], ['Did not'], ['Bytes, both ways'], ['Who did not, and why', true]], rounds),
      view.events.length > 0 && [h('h4', {}, 'The last events'), table('Events', [['Time', true], ['Event', true], ['', true]], events)]);
  });
}
