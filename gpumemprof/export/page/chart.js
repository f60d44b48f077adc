// Memory over time: the small line of a row, and the large chart on which one picks a time.

const SVG = 'http://www.w3.org/2000/svg';

/** An SVG element. Its looks are in the style sheet. */
function svg(tag, attributes = {}, children = []) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The last hour of a container, from 0 to its highest. */
function sparkline(trend) {
  const width = 132;
  const height = 26;
  const top = Math.max(...trend.values, 1);
  const x = (at) => ((at * width) / (trend.values.length - 1)).toFixed(1);
  const y = (value) => (height - 2 - (value / top) * (height - 4)).toFixed(1);
  const line = trend.values.map((value, at) => `${x(at)},${y(value)}`).join(' ');
  return svg('svg', {
    class: 'spark',
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    'aria-hidden': 'true',
  }, [
    svg('polygon', { class: 'area', points: `0,${height} ${line} ${width},${height}` }),
    svg('polyline', { class: 'curve', points: line }),
  ]);
}

/** `+1.2 GiB in 55 min`, in the colours of growth. */
function changeElement(trend) {
  if (!trend.change) return el('span', { class: 'quiet', text: 'steady' });
  return el('span', {
    class: trend.change > 0 ? 'grew' : 'shrank',
    title: `${grouped(trend.change)} bytes: the most in use in the last minutes against that of the first`,
    text: `${change(trend.change)} in ${duration(trend.seconds * 1000).replace(' 0 s', '')}`,
  });
}

const CHART_HINT = '▼ a failed allocation. Click to see what was held at a time. Times are those of '
  + `${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;
const CHART = { height: 190, left: 76, right: 14, top: 12, bottom: 24 };

/**
 * A container's history. `picked`: [{time, name}] to mark; `onPick(ms)` when one clicks.
 * `points`: columns in ms and bytes; `failures`: [ms]; `profiles`: [ms].
 */
class Chart {
  constructor({ onPick }) {
    this.onPick = onPick;
    this.readout = el('output', { class: 'readout quiet', text: CHART_HINT });
    this.box = el('div', { class: 'chart' });
    this.element = el('div', {}, [this.box, this.readout]);
    this.data = null;
    new ResizeObserver(onceAFrame(() => this.draw())).observe(this.box);
  }

  show(data) {
    this.data = data;
    this.draw();
  }

  draw() {
    if (!this.data) return;
    const { points, start, end, failures, profiles, picked } = this.data;
    const width = Math.max(this.box.clientWidth, 320);
    const { height, left, right, top, bottom } = CHART;
    const highest = Math.max(1, ...points.filter((point) => point.until >= start).map((point) => point.most));
    const x = (ms) => left + ((ms - start) / Math.max(end - start, 1)) * (width - left - right);
    const y = (bytes) => height - bottom - (bytes / highest) * (height - top - bottom);
    this.scale = { x, start, end, width };
    const steps = [];
    const spikes = [];
    for (const point of points) {
      if (point.until < start) continue;
      const from = x(Math.max(point.time, start)).toFixed(1);
      steps.push(`${from},${y(point.gpu).toFixed(1)}`);
      steps.push(`${x(Math.min(point.until, end)).toFixed(1)},${y(point.gpu).toFixed(1)}`);
      if (point.most > point.gpu && point.time >= start) spikes.push([from, y(point.gpu), y(point.most)]);
    }
    const line = steps.join(' ');
    const base = height - bottom;
    const first = steps.length ? steps[0].split(',')[0] : left;
    const last = steps.length ? steps[steps.length - 1].split(',')[0] : left;
    const marks = timeMarks(start, end, Math.floor((width - left) / 110));
    const inside = (ms) => ms >= start && ms <= end;
    this.cursor = svg('line', { class: 'cursor', y1: top, y2: base, x1: -9, x2: -9 });
    const drawing = svg('svg', { width, height, role: 'img', 'aria-label': this.data.label }, [
      ...[0, 0.5, 1].map((part) => svg('g', { class: 'grid' }, [
        svg('line', { x1: left, x2: width - right, y1: y(part * highest), y2: y(part * highest) }),
        this._text(left - 8, y(part * highest) + 4, size(Math.round(part * highest)), 'end'),
      ])),
      ...marks.map(([ms, text]) => this._text(x(ms), height - 6, text, 'middle')),
      svg('polygon', { class: 'area', points: `${first},${base} ${line} ${last},${base}` }),
      ...spikes.map(([at, from, to]) => svg('line', { class: 'spike', x1: at, x2: at, y1: from, y2: to })),
      svg('polyline', { class: 'curve', points: line }),
      ...profiles.filter(inside).map((ms) =>
        svg('line', { class: 'stored', x1: x(ms), x2: x(ms), y1: base, y2: base + 4 })),
      ...failures.filter(inside).map((ms) => svg('path', {
        class: 'failed', d: `M${x(ms) - 5},${top - 10} h10 l-5,9 z M${x(ms)},${top - 2} V${base}`,
      })),
      ...picked.filter(({ time }) => inside(time)).flatMap(({ time, name }) => [
        svg('line', { class: `picked ${name}`, x1: x(time), x2: x(time), y1: top, y2: base }),
        svg('circle', { class: `picked ${name}`, cx: x(time), cy: base, r: 5 }),
      ]),
      this.cursor,
    ]);
    drawing.addEventListener('pointermove', (event) => this._hover(event));
    drawing.addEventListener('pointerleave', () => this._leave());
    drawing.addEventListener('click', (event) => this.onPick(this._time(event)));
    this.box.replaceChildren(drawing);
  }

  _text(x, y, text, anchor) {
    const element = svg('text', { x, y, 'text-anchor': anchor });
    element.textContent = text;
    return element;
  }

  _time(event) {
    const { start, end, width } = this.scale;
    const { left, right } = CHART;
    const part = (event.offsetX - left) / (width - left - right);
    return start + Math.min(Math.max(part, 0), 1) * (end - start);
  }

  _hover(event) {
    const ms = this._time(event);
    const at = this.scale.x(ms);
    this.cursor.setAttribute('x1', at);
    this.cursor.setAttribute('x2', at);
    const point = this.data.points.filter(({ time }) => time <= ms).pop();
    this.readout.textContent = point
      ? `${clock(ms)}: ${size(point.gpu)} in use (${grouped(point.gpu)} bytes)`
      : `${clock(ms)}: nothing known`;
  }

  _leave() {
    this.cursor.setAttribute('x1', -9);
    this.cursor.setAttribute('x2', -9);
    this.readout.textContent = CHART_HINT;
  }
}
