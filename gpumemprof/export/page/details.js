// One container: its history, its failed allocations, and the flame graph of a time or of what
// changed between two.

const SPANS = [['3600000', 'last hour'], ['86400000', 'last day'], ['', 'everything']];
const NOW = 'current';

class Details {
  constructor(id) {
    this.id = id;
    this.row = null;
    this.history = null;
    this.span = null;
    this.time = NOW;
    this.before = null; // a time: then two times are compared
    this.asked = 0;
    this.head = el('div');
    this.chart = new Chart({ onPick: (ms) => this.pick(ms) });
    this.sliders = el('div', { class: 'sliders' });
    this.spans = el('span');
    this.compare = checkbox('Compare two times', false, 'Show what grew and what shrank between them',
      (on) => this.setCompare(on));
    this.failures = el('div');
    this.growth = el('div');
    this.viewer = el('div', { class: 'viewer', 'aria-live': 'polite' });
    this.element = el('div', {}, [
      this.head,
      section('Memory over time', 'history', [this.chart.element, this.sliders], [this.spans, this.compare]),
      this.growth,
      this.failures,
      this.viewer,
    ]);
  }

  async refresh() {
    const [rows, history] = await Promise.all([
      ask('/api/workloads'), ask(`/api/history?owner=${this.id}`),
    ]);
    const first = !this.history;
    this.row = rows.find((row) => row.id === this.id);
    this.history = readHistory(history);
    if (this.span === null) this.span = usualSpan(this.history);
    this.draw();
    if (first) {
      await this.load();
      await this.findGrowth();
    }
  }

  /** Times that can be looked at: those with a stored profile within what is shown, and now. */
  get times() {
    const { start } = this.range;
    const stored = this.history.profiles.filter((one) => one.ms >= start);
    const now = this.row && this.row.running ? [{ ns: NOW, ms: Date.now() }] : [];
    return [...stored, ...now];
  }

  get range() {
    const { points } = this.history;
    const end = this.row && this.row.running ? Date.now() : Math.max(0, ...points.map((p) => p.until));
    const first = points.length ? points[0].time : end - 60000;
    const start = this.span ? Math.max(first, end - Number(this.span)) : first;
    return { start: Math.min(start, end - 1000), end };
  }

  ms(time) {
    if (time === 'peak') {
      const { points } = this.history;
      return points.reduce((best, point) => (point.most >= best.most ? point : best), points[0]).time;
    }
    return time === NOW ? this.range.end : milliseconds(time);
  }

  words(time) {
    return time === NOW ? 'now' : time === 'peak' ? 'at the peak' : clock(milliseconds(time));
  }

  draw() {
    const { row, history } = this;
    this.head.replaceChildren(detailsHeader(row, history));
    this.spans.replaceChildren(choice('Show', SPANS, this.span, (value) => {
      this.span = value;
      this.draw();
      this.findGrowth();
    }));
    this.drawTimes(true);
    this.failures.replaceChildren(failedSection(history.failures, (failure) => this.show(failure.profile_ns, true)));
  }

  drawTimes(keep = false) {
    const { history } = this;
    const picked = [{ time: this.ms(this.time), name: this.before ? 'after' : 'shown' }];
    if (this.before) picked.push({ time: this.ms(this.before), name: 'before' });
    this.chart.show({
      ...this.range,
      label: 'GPU memory in use over time; click to see what was held then',
      points: history.points,
      failures: history.failures.map((failure) => milliseconds(failure.time_ns)),
      profiles: history.profiles.map((one) => one.ms),
      picked: history.points.length ? picked : [],
    });
    if (keep && this.sliders.contains(document.activeElement)) return; // it may be held right now
    const { times } = this;
    const named = (name, text, time, set) => slider(name, text, times, time, (value) => this.words(value), set);
    this.sliders.replaceChildren(
      ...(this.before ? [
        named('before', 'Before', this.before, (time) => this.show(time, false, 'before')),
        named('after', 'After', this.time, (time) => this.show(time)),
      ] : [
        named('shown', 'Shown', this.time, (time) => this.show(time)),
      ]),
      el('div', { class: 'buttons' }, [
        this.row && this.row.running
          ? button('Now', () => this.show(NOW), 'What is held now') : null,
        this.before ? null : button('Peak', () => this.show('peak'), 'What was held when most was held'),
        ...this._downloads(),
      ]),
    );
  }

  _downloads() {
    const address = (name) => `/api/${name}?owner=${this.id}&time=${this.time}`;
    return [
      el('a', { href: address('profile.pb.gz'), download: 'gpumemprof.pb.gz', text: 'pprof', title: 'Download for go tool pprof' }),
      el('a', { href: address('folded'), download: 'gpumemprof.folded.txt', text: 'folded', title: 'Download as folded stacks' }),
    ];
  }

  /** The stored time nearest to where one clicked; of two that are compared, the nearer one. */
  pick(ms) {
    const { times } = this;
    if (!times.length) return;
    const nearest = times.reduce((best, one) =>
      (Math.abs(one.ms - ms) < Math.abs(best.ms - ms) ? one : best), times[0]);
    const toBefore = this.before
      && Math.abs(this.ms(this.before) - ms) < Math.abs(this.ms(this.time) - ms);
    this.show(nearest.ns, false, toBefore ? 'before' : 'time');
  }

  setCompare(on) {
    const first = this.times[0];
    this.before = on && first ? first.ns : null;
    if (this.time === 'peak') this.time = NOW;
    this.draw();
    this.load();
  }

  show(time, toFailures = false, which = 'time') {
    if (toFailures && this.before) {
      this.before = null;
      this.compare.querySelector('input').checked = false;
    }
    this[which] = time;
    if (this.before && this.ms(this.before) > this.ms(this.time)) {
      [this.before, this.time] = [this.time, this.before];
    }
    this.drawTimes();
    this.load(toFailures);
  }

  /** Fetch and draw what was chosen; of several requests under way only the last one counts. */
  async load(toFailures = false) {
    this.asked += 1;
    const mine = this.asked;
    const what = this.before
      ? `/api/diff?owner=${this.id}&before=${this.before}&after=${this.time}`
      : `/api/profile?owner=${this.id}&time=${this.time}`;
    this.viewer.classList.add('loading');
    try {
      const data = await ask(what);
      if (mine !== this.asked) return;
      window.gpumemprof.show(data, this.viewer);
      const part = toFailures && this.viewer.querySelector('#failures');
      if (part) {
        for (const one of part.querySelectorAll('details')) one.open = true;
        part.scrollIntoView();
      }
    } catch (error) {
      if (mine === this.asked) {
        this.viewer.replaceChildren(el('p', { class: 'banner bad', text: error.message }));
      }
    } finally {
      if (mine === this.asked) this.viewer.classList.remove('loading');
    }
  }

  /** Looks for stacks that grow steadily in what the chart shows: some seconds' work for the agent. */
  async findGrowth() {
    if (!this.history.profiles.length) return;
    const mine = this.span;
    const found = await ask(`/api/growth?owner=${this.id}&since=${Math.floor(this.range.start)}000000`);
    if (mine === this.span) this.growth.replaceChildren(growthSection(found));
  }
}

/** The stacks whose memory rises steadily in what the chart shows. */
function growthSection({ observations, needed, stacks, more }) {
  if (observations < needed) return '';
  if (!stacks.length) {
    return section('Steady growth', 'growth', [
      el('p', { class: 'quiet', text: `No function's memory rises steadily: ${observations} times of what is shown were compared.` }),
    ]);
  }
  const row = ({ function: name, place, process, trend, stack }) => el('tr', {}, [
    el('td', { class: 'number grew', title: `${grouped(trend.bytes_per_minute)} bytes a minute`, text: rate(trend.bytes_per_minute) }),
    el('td', {}, [el('div', { class: 'trend' }, [sparkline(trend)])]),
    el('td', { class: 'number', title: exact(trend.grown), text: change(trend.grown) }),
    el('td', {}, [timeElement(milliseconds(trend.since_ns))]),
    el('td', {}, [
      el('span', { class: 'name', text: name }),
      el('span', { class: 'place', text: ` ${place}` }),
      el('details', {}, [
        el('summary', { class: 'quiet small', text: process ? `stack, ${process}` : 'stack' }),
        el('ol', { class: 'stack' }, stack.map(([frame, where]) => el('li', {}, [
          el('span', { class: 'name', text: frame }), el('span', { class: 'quiet', text: where }),
        ]))),
      ]),
    ]),
  ]);
  return section('Steady growth', 'growth', [
    el('div', { class: 'scroll' }, [el('table', {}, [
      el('thead', {}, [el('tr', {}, ['Rate', 'In use', 'Grown', 'Since', 'Function'].map((text, at) =>
        el('th', { scope: 'col', text, class: at === 0 || at === 2 ? 'number' : null })))]),
      el('tbody', {}, stacks.map(row)),
    ])]),
    more ? el('p', { class: 'quiet', text: `and ${grouped(more)} more` }) : null,
  ]);
}

/** Bytes a minute, or an hour where a minute is little. */
function rate(perMinute) {
  return perMinute >= 1048576 ? `${size(perMinute)}/min` : `${size(perMinute * 60)}/h`;
}

/** Columns of the answer as rows, times in ms. */
function readHistory({ points, profiles, failures }) {
  return {
    points: points.time_ns.map((time, at) => ({
      time: milliseconds(time),
      until: milliseconds(points.until_ns[at]),
      gpu: points.gpu[at],
      most: points.most[at],
      failures: points.failures[at],
    })),
    profiles: profiles.map((ns) => ({ ns, ms: milliseconds(ns) })),
    failures,
  };
}

/** A day, unless there is less than an hour. */
function usualSpan({ points }) {
  const known = points.length ? points[points.length - 1].until - points[0].time : 0;
  return known > 86400000 ? '86400000' : '';
}

function button(text, onClick, title) {
  return el('button', { type: 'button', class: 'push', text, title, on: { click: onClick } });
}

function slider(name, text, times, time, words, onChange) {
  const exactly = times.findIndex((one) => one.ns === time);
  const at = exactly >= 0 ? exactly : times.length - 1;
  const output = el('output', { text: words(time) });
  const input = el('input', {
    type: 'range',
    min: 0,
    max: Math.max(times.length - 1, 0),
    value: at,
    disabled: times.length < 2,
    'aria-label': `${text}: time of the profile`,
    on: {
      input: () => { output.textContent = words(times[input.value].ns); },
      change: () => onChange(times[input.value].ns),
    },
  });
  input.value = at;
  return el('label', { class: `slider ${name}` }, [el('span', { class: 'quiet', text }), input, output]);
}

function detailsHeader(row, history) {
  const back = el('a', { class: 'back', href: '#/', text: '← all workloads' });
  if (!row) return el('div', { class: 'crumb' }, [back, el('p', { text: 'This container is not known any more.' })]);
  const facts = [
    [row.running ? 'in use' : 'held at last', sizeElement(row.running ? row.in_use : row.held_last)],
    ['peak', sizeElement(row.peak)],
    ...(row.pinned ? [['pinned host memory', sizeElement(row.pinned)]] : []),
    ...(row.trend ? [['last hour', changeElement(row.trend)]] : []),
    ['failed allocations', el('span', { text: grouped(row.failures) })],
    ...(history.points.length ? [['since', timeElement(history.points[0].time)]] : []),
    ...(row.running || !row.last_ns ? [] : [['ended', timeElement(milliseconds(row.last_ns))]]),
  ];
  return el('div', { class: 'crumb' }, [
    back,
    el('h1', {}, [
      row.namespace ? el('span', { class: 'quiet', text: `${row.namespace} / ` }) : null,
      el('bdi', { text: row.workload || row.pod }),
    ]),
    el('p', { class: 'quiet small' }, [el('bdi', {
      text: [row.pod, row.container].filter(Boolean).join(' / ') || 'process of no pod',
    })]),
    el('dl', { class: 'facts' }, facts.map(([name, value]) =>
      el('div', {}, [el('dt', { text: name }), el('dd', {}, [value])]))),
  ]);
}

function failedSection(failures, onShow) {
  if (!failures.length) return '';
  const bytes = (value) => (value === null ? el('span', { class: 'quiet', text: 'not known' }) : sizeElement(value));
  return section('Failed allocations', 'failed', [el('div', { class: 'scroll' }, [el('table', {}, [
    el('thead', {}, [el('tr', {}, ['When', 'Asked for', 'Free then', 'Held then', 'By', 'Error', ''].map((text, at) =>
      el('th', { scope: 'col', text, class: at > 0 && at < 4 ? 'number' : null })))]),
    el('tbody', {}, failures.map((failure) => el('tr', {}, [
      el('td', {}, [timeElement(milliseconds(failure.time_ns))]),
      el('td', { class: 'number' }, [bytes(failure.requested)]),
      el('td', { class: 'number' }, [bytes(failure.free)]),
      el('td', { class: 'number' }, [bytes(failure.in_use)]),
      el('td', { class: 'name', text: failure.function }),
      el('td', { title: failure.error, text: failure.meaning || failure.error }),
      el('td', {}, [button('post-mortem', () => onShow(failure), 'What was held then, and by whom')]),
    ]))),
  ])])]);
}
