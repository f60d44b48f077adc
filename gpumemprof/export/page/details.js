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
    this.head = el('div', {}, [loading()]);
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
      if (!points.length) return this.range.end;  // nothing was stored of it yet
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
