// A page served by `fedwidth view`: asks for new data, and puts it in without disturbing the reader.
const EVERY = 2000; // milliseconds

function keepPlaceOf(root, node) {
  const path = [];
  for (let at = node; at !== root; at = at.parentNode) path.unshift([...at.parentNode.children].indexOf(at));
  return path;
}
const atPlace = (root, path) => path.reduce((at, place) => at && at.children[place], root);

// Remembers focus and inner scrolling of a part of the page; what it returns restores them in what replaced it.
function keepPlace(root) {
  const focused = root.contains(document.activeElement) && document.activeElement;
  const focus = focused && [keepPlaceOf(root, focused), focused.tagName];
  const scrolled = [...root.querySelectorAll('.scroll, .legend, pre')].filter((node) => node.scrollLeft || node.scrollTop)
    .map((node) => [keepPlaceOf(root, node), node.scrollLeft, node.scrollTop]);
  return () => {
    for (const [path, left, top] of scrolled) atPlace(root, path)?.scrollTo({ left, top, behavior: 'instant' });
    const node = focus && atPlace(root, focus[0]);
    if (node && node.tagName === focus[1]) node.focus({ preventScroll: true });
  };
}

function live() {
  const chip = document.getElementById('live');
  let current = LIVE;
  let waiting = null; // data that came while the reader's hand was on something
  const tell = (text, kind) => { chip.hidden = false; chip.className = `chip ${kind}`; if (chip.textContent !== text) chip.textContent = text; };
  const status = () => {
    const going = data.runs.filter((run) => !run.finished);
    if (!data.runs.length) tell('live, waiting', 'on');
    else if (!going.length) tell(`${plural(data.runs.length, 'run')} finished`, 'done'); // others may follow
    else tell(going.length === 1 ? `live, round ${show.round(going[0].done)} of ${show.round(going[0].rounds)}` : `live, ${going.length} of ${data.runs.length} runs unfinished`, 'on');
  };

  async function put(next) {
    await unpackShown(next);
    if (state.busy.size) { waiting = next; return; }
    // The first section on the screen stays where it is, whatever grows above it.
    const anchor = [...document.querySelectorAll('main > section')].find((section) => section.getBoundingClientRect().bottom > 0);
    const before = anchor && anchor.getBoundingClientRect().top;
    const scrolled = window.scrollY > 0;
    data = next;
    build();
    status();
    if (anchor && scrolled) window.scrollBy({ top: anchor.getBoundingClientRect().top - before, behavior: 'instant' });
  }
  async function ask() {
    try {
      if (waiting && !state.busy.size) { const next = waiting; waiting = null; await put(next); }
      if (!document.hidden) {
        const answer = await fetch(`data?after=${current}`, { cache: 'no-store' });
        if (answer.status === 200) {
          const found = await answer.json();
          current = found.state;
          waiting = null;
          await put(found.data);
        } else if (answer.status !== 204) throw new Error(String(answer.status));
        status();
      }
    } catch { tell('no answer from fedwidth view; trying again', 'lost'); }
    setTimeout(ask, EVERY);
  }
  window.addEventListener('pointerdown', () => state.busy.add('pointer'));
  for (const name of ['pointerup', 'pointercancel']) window.addEventListener(name, () => state.busy.delete('pointer'));
  document.getElementById('foot').textContent = `Shown by fedwidth ${data.version}, updated every ${EVERY / 1000} seconds.`;
  status();
  setTimeout(ask, EVERY);
}
