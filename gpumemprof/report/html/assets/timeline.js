// Memory over time: step lines, one for each process and device, with marks where allocations
// failed. Times are microseconds from the start.

const TIMELINE_HEIGHT = 150;
const MAX_LINES = 14;
const TIMELINE_COLOURS = [
  [0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [213, 94, 0],
  [150, 150, 150],
];
const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
const FAILED = [213, 94, 0];
const MARGIN = { left: 64, right: 12, top: 14, bottom: 20 };

class Timeline {
  /** `data`: `duration`, `series` (`name`, `times`, `values`), `marks` (`time`, `text`). */
  constructor(data) {
    this.data = data;
    this.shown = data.series.map(() => true);
    this.canvas = el('canvas', {
      role: 'img',
      'aria-label': this._words(),
      on: {
        mousemove: (event) => this._hover(event),
        mouseleave: () => {
          this.at = null;
          tooltip.hide();
          this.redraw();
        },
      },
    });
    this.at = null;
    this.redraw = onceAFrame(() => this._draw());
    this.element = el('div', { class: 'timeline' }, [this.canvas, this._legend()]);
    new ResizeObserver(() => this.redraw()).observe(this.element);
    drawnInColours(this.element, this.redraw);
  }

  _words() {
    const peaks = this.data.series.map((one) => `${one.name}: at most ${size(highestOf(one.values, 0))}`);
    const failed = this.data.marks.length ? `; ${number(this.data.marks.length, 'failed allocation')}` : '';
    return `Memory over ${duration(this.data.duration / 1000)}; ${peaks.join(', ')}${failed}`;
  }

  _legend() {
    const { left_out: leftOut } = this.data;
    return el('ul', { class: 'legend' }, [...this.data.series.map((one, at) => {
      const line = el('span', { class: `line dash${Math.floor(at / TIMELINE_COLOURS.length) % 4}` });
      line.style.borderColor = css(TIMELINE_COLOURS[at % TIMELINE_COLOURS.length]);
      const button = el('button', {
        type: 'button',
        'aria-pressed': 'true',
        on: {
          click: () => {
            this.shown[at] = !this.shown[at];
            button.setAttribute('aria-pressed', String(this.shown[at]));
            this.redraw();
          },
        },
      }, [line, one.name]);
      return el('li', {}, [button]);
    }), leftOut ? el('li', { text: `and ${grouped(leftOut)} more` }) : null]);
  }

  get _series() {
    return this.data.series.map((one, at) => [one, at]).filter(([, at]) => this.shown[at]);
  }

  _draw() {
    const width = this.element.clientWidth;
    const context = width && prepared(this.canvas, width, TIMELINE_HEIGHT);
    if (!context) return;
    const ink = getComputedStyle(this.canvas).color;
    const inner = { width: width - MARGIN.left - MARGIN.right, height: TIMELINE_HEIGHT - MARGIN.top - MARGIN.bottom };
    const most = this._series.reduce((max, [one]) => highestOf(one.values, max), 1);
    const [top, step] = niceScale(most);
    this.x = (time) => MARGIN.left + (inner.width * time) / Math.max(this.data.duration, 1);
    this.y = (bytes) => MARGIN.top + inner.height * (1 - bytes / top);
    context.font = '11px system-ui, sans-serif';
    context.fillStyle = context.strokeStyle = ink;
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (let bytes = 0; bytes <= top; bytes += step) {
      context.globalAlpha = 0.15;
      context.fillRect(MARGIN.left, Math.round(this.y(bytes)), inner.width, 1);
      context.globalAlpha = 0.75;
      context.fillText(bytes ? size(bytes) : '0', MARGIN.left - 8, this.y(bytes));
    }
    context.textBaseline = 'alphabetic';
    const every = niceTime(this.data.duration / Math.max(2, Math.min(8, inner.width / 110)));
    for (let time = 0; time <= this.data.duration; time += every) {
      const x = this.x(time);
      const atEdge = x + 40 > width ? 'right' : 'center';
      context.textAlign = time ? atEdge : 'left';
      context.fillText(timeOf(time, every), x, TIMELINE_HEIGHT - 4);
    }
    context.globalAlpha = 1;
    for (const [one, at] of this._series) this._drawSeries(context, one, at);
    context.setLineDash([]);
    for (const mark of this.data.marks) this._drawMark(context, mark, inner.height);
    if (this.at !== null) {
      context.globalAlpha = 0.6;
      context.fillStyle = ink;
      context.fillRect(this.x(this.at), MARGIN.top, 1, inner.height);
    }
  }

  _drawSeries(context, one, at) {
    const rgb = TIMELINE_COLOURS[at % TIMELINE_COLOURS.length];
    context.strokeStyle = css(rgb);
    context.lineWidth = 1.8;
    context.setLineDash(DASHES[Math.floor(at / TIMELINE_COLOURS.length) % DASHES.length]);
    context.beginPath();
    let last = 0;
    one.times.forEach((time, index) => {
      if (index) context.lineTo(this.x(time), this.y(last));
      else context.moveTo(this.x(time), this.y(one.values[0]));
      last = one.values[index];
      context.lineTo(this.x(time), this.y(last));
    });
    if (one.times.length) context.lineTo(this.x(this.data.duration), this.y(last));
    context.stroke();
    if (this._series.length === 1) {
      context.lineTo(this.x(this.data.duration), this.y(0));
      context.lineTo(this.x(one.times[0]), this.y(0));
      context.globalAlpha = 0.14;
      context.fillStyle = css(rgb);
      context.fill();
      context.globalAlpha = 1;
    }
  }

  _drawMark(context, mark, height) {
    const x = this.x(mark.time);
    context.fillStyle = css(FAILED);
    context.fillRect(x - 0.75, MARGIN.top, 1.5, height);
    context.beginPath();
    context.moveTo(x - 6, 2);
    context.lineTo(x + 6, 2);
    context.lineTo(x, MARGIN.top);
    context.fill();
  }

  _hover(event) {
    if (!this.x) return;
    const area = this.canvas.getBoundingClientRect();
    const inner = area.width - MARGIN.left - MARGIN.right;
    const part = Math.min(Math.max((event.clientX - area.left - MARGIN.left) / inner, 0), 1);
    this.at = part * this.data.duration;
    const marks = this.data.marks.filter((mark) => Math.abs(this.x(mark.time) - this.x(this.at)) < 6);
    const rows = this._series.map(([one]) => {
      const bytes = valueAt(one, this.at);
      return [one.name, size(bytes), exact(bytes)];
    });
    tooltip.show(event, [
      el('div', { class: 'where', text: `${duration(this.at / 1000)} after the start` }),
      ...marks.slice(0, 3).map((mark) => el('div', { class: 'failed', text: mark.text })),
      sizesTable(rows),
    ]);
    this.redraw();
  }
}

/** What passes the filters, summed for each process and device, the highest peaks first. */
function combined(model, filters) {
  const { timeline } = model.data;
  const passes = model.passing(filters);
  const rows = timeline.series.filter((one) => passes[one.labels]);
  const value = (name) => (one) => model.labels[name][one.labels];
  const several = (name) => new Set(rows.map(value(name))).size > 1;
  const named = ['pod', 'process', 'device'].filter(several);
  const words = filters.kind === GPU ? 'GPU memory' : `${filters.kind.replaceAll('_', ' ')} memory`;
  const parts = new Map();
  for (const one of rows) {
    const name = named.map((dimension) => value(dimension)(one)).filter(Boolean).join(' ') || words;
    if (!parts.has(name)) parts.set(name, []);
    parts.get(name).push(one);
  }
  const lines = [...parts].map(([name, members]) => ({ name, ...stepSum(members) }));
  const peak = (line) => highestOf(line.values, 0);
  lines.sort((a, b) => peak(b) - peak(a));
  return {
    duration: timeline.duration,
    series: lines.slice(0, MAX_LINES),
    left_out: timeline.left_out + Math.max(lines.length - MAX_LINES, 0),
    marks: timeline.marks.filter((mark) => passes[mark.labels]),
  };
}

/** The sum of step functions. */
function stepSum(members) {
  if (members.length === 1) return { times: members[0].times, values: members[0].values };
  const changes = [];
  for (const { times, values } of members) {
    times.forEach((time, at) => changes.push([time, values[at] - (at ? values[at - 1] : 0)]));
  }
  changes.sort((a, b) => a[0] - b[0]);
  const [times, values] = [[], []];
  let held = 0;
  for (const [time, by] of changes) {
    held += by;
    if (times[times.length - 1] === time) values[values.length - 1] = held;
    else {
      times.push(time);
      values.push(held);
    }
  }
  return { times, values };
}

/** The value of a series at a time: that of its last point up to then. */
function valueAt(one, time) {
  let [low, high] = [0, one.times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (one.times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low ? one.values[low - 1] : 0;
}

/** [top, step] of an axis in round binary sizes that reaches `most`. */
function niceScale(most) {
  let step = 1;
  while (step * 4 < most) step *= 2;
  return [Math.ceil(most / step) * step, step];
}

/** A round step of at least `atLeast` microseconds. */
function niceTime(atLeast) {
  const second = 1e6;
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  if (atLeast > second) {
    const step = steps.find((seconds) => seconds * second >= atLeast);
    return step ? step * second : Math.ceil(atLeast / (86400 * second)) * 86400 * second;
  }
  const power = 10 ** Math.floor(Math.log10(Math.max(atLeast, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= atLeast);
}

/** A time on an axis with steps of `every`, both in microseconds. */
function timeOf(time, every) {
  if (!time) return '0';
  const seconds = time / 1e6;
  if (every < 1000) return `${Math.round(time)} µs`;
  if (time < 1e6) return `${Math.round(time / 1000)} ms`;
  if (seconds < 60 || every < 1e6) return `${Number(seconds.toFixed(3))} s`;
  return duration(time / 1000).replace(/ 0 \w+$/, '');
}
