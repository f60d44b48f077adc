// Slow leaks: stacks whose memory rises steadily, with the evidence.

const SPARK = { width: 130, height: 26 };

class GrowthTable {
  constructor(model) {
    this.model = model;
    this.body = el('tbody');
    this.count = el('span', { class: 'quiet' });
    const heading = ([text, title, name]) => el('th', { scope: 'col', text, title, class: name });
    const { left_out: leftOut } = model.data.growth;
    this.element = section('Steady growth', 'growth', [
      el('div', { class: 'scroll' }, [el('table', { class: 'growth' }, [
        el('thead', {}, [el('tr', {}, [
          ['Per minute', 'median slope', 'number'],
          ['In use', 'from when it began to rise', ''],
          ['Grown', 'and never given back', 'number'],
          ['Seen for', 'how long it was observed to rise', 'number'],
          ['Rising', 'observations that are not below the last', 'number'],
          ['Function', 'whose memory it is', ''],
          ['File:line', '', ''],
        ].map(heading))]),
        this.body,
      ])]),
      leftOut ? el('p', { class: 'quiet', text: `and ${grouped(leftOut)} more, which grow slower` }) : '',
    ], [this.count]);
    this.element.id = 'growth';
  }

  /** `passes`: for each row of labels whether it is to be shown. */
  show(passes) {
    const rows = this.model.data.growth.stacks.filter((one) => passes[one.labels]);
    this.body.replaceChildren(...rows.map((one) => this._row(one)));
    this.count.textContent = `${number(rows.length, 'stack')} whose memory in use rises steadily`;
  }

  _row(one) {
    const { model } = this;
    const frame = model.frame[one.owner];
    const fn = model.functionOf[frame];
    const cell = (text, title = null) => el('td', { class: 'number', text, title });
    const process = model.labels.process[one.labels];
    const stack = el('details', {}, [
      el('summary', { text: `stack${process ? `, ${process}` : ''}` }),
      stackList(model, one.node),
    ]);
    return el('tr', {}, [
      el('td', { class: 'number grew', text: `${change(one.per_minute)}`, title: exact(one.per_minute) }),
      el('td', {}, [sparkline(one)]),
      cell(size(one.grown), exact(one.grown)),
      cell(duration((one.times[one.times.length - 1] - one.times[0]) / 1000)),
      cell(`${one.rising} of ${one.steps}`),
      el('td', {}, [el('div', { class: 'name' }, [el('span', { text: model.name[fn] })]), stack]),
      el('td', { class: 'place', text: model.place(fn, model.lineOf[frame]) }),
    ]);
  }
}

/** A small line of bytes over time, from 0. */
function sparkline({ times, values }) {
  const [first, last] = [values[0], values[values.length - 1]];
  const canvas = el('canvas', { role: 'img', 'aria-label': `from ${size(first)} to ${size(last)}` });
  const context = prepared(canvas, SPARK.width, SPARK.height);
  if (!context) return canvas;
  const span = Math.max(times[times.length - 1] - times[0], 1);
  const most = highestOf(values, 1);
  context.strokeStyle = context.fillStyle = css(TIMELINE_COLOURS[1]);
  context.lineWidth = 1.6;
  context.beginPath();
  times.forEach((time, at) => {
    const x = 1 + ((SPARK.width - 2) * (time - times[0])) / span;
    const y = SPARK.height - 1 - ((SPARK.height - 3) * values[at]) / most;
    if (at) context.lineTo(x, y);
    else context.moveTo(x, y);
  });
  context.stroke();
  context.lineTo(SPARK.width - 1, SPARK.height);
  context.lineTo(1, SPARK.height);
  context.globalAlpha = 0.2;
  context.fill();
  return canvas;
}
