// What the page of one container consists of: its header, the tables of failed allocations and of
// steady growth, and the controls that choose a time.

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
