// Line charts: hover or arrow keys for values, redrawn to the width they have.
function niceTicks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(k * step || 0);
  return ticks;
}
function logTicks(low, high) {
  const ticks = [];
  const parts = Math.log10(high / low) < 2.2 ? [1, 2, 5] : [1];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) ticks.push(...parts.map((m) => m * 10 ** p));
  const inside = ticks.filter((t) => t >= low * 0.999 && t <= high * 1.001);
  if (inside.length < 2) return niceTicks(low, high, 4).filter((t) => t > 0);
  const every = Math.ceil(inside.length / 8);
  return inside.filter((_, place) => place % every === 0);
}
function nearest(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

// spec(): { lines: [{ entry, x, y, low, high }], x: {title, show, ticks}, y: {title, show, log, floor, ceiling}, marker }
function lineChart(title, spec, height = 300) {
  const host = h('div', { class: 'figure' });
  const plot = h('div');
  host.append(plot);
  const tip = tooltip(host);
  let place = null; // where the crosshair is, in values of x; a live page puts it there again
  let frame = null;

  function lay() {
    const { lines: all, x, y, marker } = spec();
    const lines = all.filter((line) => !isHidden(line.entry));
    const width = Math.max(240, host.clientWidth);
    const tall = width < 480 ? Math.min(height, 250) : height;
    const box = { left: 50, right: width - 14, top: 10, bottom: tall - 40 };
    const drawable = (line, at) => known(line.x[at]) && known(line.y[at]) && (!y.log || line.y[at] > 0);
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const line of lines) {
      line.points = line.x.map((_, at) => at).filter((at) => drawable(line, at));
      for (const at of line.points) {
        x0 = Math.min(x0, line.x[at]); x1 = Math.max(x1, line.x[at]);
        for (const v of [line.y[at], line.low ? line.low[at] : null, line.high ? line.high[at] : null]) {
          if (known(v) && (!y.log || v > 0)) { y0 = Math.min(y0, v); y1 = Math.max(y1, v); }
        }
      }
    }
    if (x0 > x1) return { lines: [], width, tall, box };
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; } else if (x.zero) x0 = Math.min(0, x0);
    if (y.whole && !y.log) [y0, y1] = [y.floor, y.ceiling];
    const slack = y.log || (y.whole && !y.log) ? 0 : (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 0.5;
    y0 = Math.max(y0 - slack, y.floor ?? -Infinity);
    y1 = Math.min(y1 + slack, y.ceiling ?? Infinity);
    if (!(y1 > y0)) { y0 -= 0.5; y1 += 0.5; }
    const up = y.log ? Math.log : (v) => v;
    return {
      lines, width, tall, box, x, y, marker, x0, x1, y0, y1,
      px: (v) => box.left + ((v - x0) / (x1 - x0)) * (box.right - box.left),
      py: (v) => box.bottom - ((up(Math.max(v, y.log ? y0 : v)) - up(y0)) / (up(y1) - up(y0))) * (box.bottom - box.top),
    };
  }

  function paths({ lines, px, py, y }) {
    return lines.map((line) => {
      let path = '';
      let ribbon = '';
      let pieces = [];
      const flush = () => {
        if (pieces.length > 1) {
          ribbon += `M${pieces.map(([a, , c]) => `${a},${c}`).join('L')}L${pieces.reverse().map(([a, b]) => `${a},${b}`).join('L')}Z`;
        }
        pieces = [];
      };
      line.points.forEach((at, number) => {
        const broken = number === 0 || line.points[number - 1] !== at - 1;
        const left = px(line.x[at]).toFixed(1);
        path += `${broken ? 'M' : 'L'}${left},${py(line.y[at]).toFixed(1)}`;
        if (broken) flush();
        if (line.low && known(line.low[at]) && (!y.log || line.low[at] > 0)) pieces.push([left, py(line.low[at]).toFixed(1), py(line.high[at]).toFixed(1)]);
      });
      flush();
      const few = line.points.length <= 12;
      return [
        ribbon && s('path', { d: ribbon, fill: colour(line.entry), opacity: 0.16 }),
        s('path', { d: path, fill: 'none', stroke: colour(line.entry), 'stroke-width': 2, 'stroke-dasharray': dash(line.entry), 'stroke-linejoin': 'round', class: 'curve' }),
        few && line.points.map((at) => s('circle', { cx: px(line.x[at]), cy: py(line.y[at]), r: 3, fill: colour(line.entry) })),
      ];
    });
  }

  function draw() {
    frame = lay();
    const { width, tall, box, lines, x, y } = frame;
    const svg = s('svg', { width, height: tall, viewBox: `0 0 ${width} ${tall}`, tabindex: 0, role: 'img', 'aria-label': `${title}; ${plural(lines.length, 'line')}. Arrow keys read values.` });
    if (!lines.length) {
      svg.append(s('text', { x: width / 2, y: tall / 2, 'text-anchor': 'middle' }, spec().lines.length ? 'every line is hidden' : 'nothing measured'));
    } else {
      const yTicks = y.log ? logTicks(frame.y0, frame.y1) : niceTicks(frame.y0, frame.y1, 5);
      const xTicks = x.ticks || niceTicks(frame.x0, frame.x1, width < 480 ? 4 : 7);
      svg.append(
        ...yTicks.flatMap((v) => [
          s('line', { class: 'gridline', x1: box.left, x2: box.right, y1: frame.py(v), y2: frame.py(v) }),
          s('text', { x: box.left - 8, y: frame.py(v) + 4, 'text-anchor': 'end' }, (y.tick || y.show)(v, yTicks.length > 1 ? yTicks[1] - yTicks[0] : 1))]),
        ...xTicks.map((v) => s('text', { x: frame.px(v), y: box.bottom + 17, 'text-anchor': 'middle' }, x.show(v))),
        s('line', { class: 'axis', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
        s('text', { x: (box.left + box.right) / 2, y: tall - 5, 'text-anchor': 'middle' }, x.title),
        ...paths(frame).flat(2).filter(Boolean));
      if (known(frame.marker)) svg.append(s('line', { class: 'cross', x1: frame.px(frame.marker), x2: frame.px(frame.marker), y1: box.top, y2: box.bottom }));
      svg.append(s('g', { class: 'pointer' }));
    }
    svg.addEventListener('pointermove', (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      point(frame.x0 + ((at - box.left) / (box.right - box.left)) * (frame.x1 - frame.x0));
    });
    for (const name of ['pointerleave', 'blur']) svg.addEventListener(name, () => point(null));
    svg.addEventListener('keydown', (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (!move || !lines.length) return;
      event.preventDefault();
      const guide = lines.reduce((a, b) => (b.points.length > a.points.length ? b : a));
      const xs = guide.points.map((at) => guide.x[at]);
      const next = place === null && Number.isFinite(move) ? (move > 0 ? 0 : xs.length - 1) : Math.max(0, Math.min(xs.length - 1, (place === null ? 0 : nearest(xs, place)) + move));
      say(point(xs[next]));
    });
    const focused = plot.contains(document.activeElement);
    plot.replaceChildren(svg);
    if (focused) svg.focus({ preventScroll: true });
    point(state.pointer && state.pointer.title === title && frame.lines.length ? state.pointer.value : null);
  }

  function point(value) {
    place = value;
    if (value !== null) state.pointer = { title, value };
    else if (state.pointer && state.pointer.title === title) state.pointer = null;
    const group = plot.querySelector('.pointer');
    if (!group) return '';
    group.replaceChildren();
    if (value === null) { tip.hide(); return ''; }
    const { lines, x, y, px, py, box } = frame;
    let bounded = Math.max(frame.x0, Math.min(frame.x1, value));
    const found = lines.filter((line) => line.points.length).map((line) => {
      const at = line.points[nearest(line.points.map((p) => line.x[p]), bounded)];
      return { line, at, y: line.y[at], x: line.x[at] };
    }).sort((a, b) => b.y - a.y);
    const value_ = (f) => (f.line.low && known(f.line.low[f.at]) ? `${y.show(f.y, 2)} (${y.show(f.line.low[f.at], 1)} – ${y.show(f.line.high[f.at], 1)})` : y.show(f.y, 2));
    const rows = found.slice(0, 12).map((f) => h('div', {}, swatch(f.line.entry), h('span', {}, data.entries[f.line.entry].label), h('span', {}, value_(f))));
    const ends = found.map((f) => f.x);
    const same = Math.max(...ends) === Math.min(...ends);
    if (same) [bounded] = ends;
    group.append(
      s('line', { class: 'cross', x1: px(bounded), x2: px(bounded), y1: box.top, y2: box.bottom }),
      ...found.map((f) => s('circle', { cx: px(f.x), cy: py(f.y), r: 4, fill: colour(f.line.entry), stroke: 'var(--surface)', 'stroke-width': 1.5 })));
    const head = `${x.one || x.title} ${x.show(bounded)}${same ? '' : ', nearest measured'}`;
    tip.show(px(bounded), box.top, [h('b', {}, head), ...rows, found.length > 12 && h('span', { class: 'small' }, `and ${found.length - 12} more`)]);
    return `${head}: ${found.slice(0, 12).map((f) => `${data.entries[f.line.entry].label} ${value_(f)}`).join(', ')}`;
  }

  redraws.push(draw);
  return host;
}
