// The parts of the page that only tell: head, warnings, failures, processes, about.

const MAX_PROCESSES = 500;

function reportHeader(model) {
  const { data } = model;
  const pinned = model.select({ kind: data.pinned });
  const held = (type) => sizeElement(model.sum(pinned, model.values[type]));
  return el('header', { class: 'top' }, [
    el('div', {}, [
      el('h1', { text: data.title }),
      el('p', { class: 'quiet' }, [
        data.command && data.command !== data.title ? el('code', { text: data.command }) : null,
        data.recorded ? el('span', { text: `recorded ${data.recorded}` }) : null,
      ]),
    ]),
    el('div', { class: 'badges' }, [
      data.failed ? el('a', {
        class: 'badge bad',
        href: '#failures',
        text: `${number(data.failed, 'allocation')} failed`,
      }) : null,
      data.growth.stacks.length ? el('a', {
        class: 'badge grows',
        href: '#growth',
        text: `${number(data.growth.stacks.length + data.growth.left_out, 'stack')} growing`,
      }) : null,
      pinned.length ? el('span', { class: 'badge', title: 'never added to GPU memory' }, [
        'pinned host memory ', held('inuse_space'), ', peak ', held('peak_space'),
      ]) : null,
      themeButton(),
    ]),
  ]);
}

function banners(data) {
  const list = (sentences) => el('ul', {}, sentences.map((text) => el('li', { text })));
  return [
    data.losses.length ? el('div', { class: 'banner bad', role: 'alert' }, [
      el('strong', { text: 'INCOMPLETE: not everything could be recorded' }), list(data.losses),
    ]) : null,
    ...data.hints.map((text) => el('p', { class: 'banner', text })),
  ];
}

function failuresSection(model) {
  const { failed } = model.data;
  if (!failed) return null;
  const part = section(`${number(failed, 'allocation')} failed${model.before ? ' (after)' : ''}`, 'failures',
    failureCards(model));
  part.id = 'failures';
  const told = model.data.failures.reduce((sum, failure) => sum + failure.times, 0);
  if (told < failed) {
    part.append(el('p', { class: 'quiet', text: `and ${grouped(failed - told)} more at other places` }));
  }
  return part;
}

function processesSection({ processes }) {
  if (!processes.length) return null;
  const pinned = processes.some((process) => process.pinned_peak);
  const driver = processes.some((process) => process.driver !== null);
  const bytes = (value) => (value === null ? '-' : sizeElement(value));
  const columns = [
    ['Process', (process) => process.name, ''],
    ['In use', (process) => bytes(process.in_use), 'number'],
    ['Peak', (process) => bytes(process.peak), 'number'],
    ...(pinned ? [['Pinned', (process) => bytes(process.pinned_in_use), 'number']] : []),
    ...(driver ? [
      ['Driver', (process) => bytes(process.driver), 'number'],
      ['Not tracked', (process) => bytes(process.not_tracked), 'number'],
    ] : []),
    ['', (process) => process.state, ''],
    ['Command', (process) => process.command, 'command'],
  ];
  const sorted = [...processes].sort((a, b) => b.in_use - a.in_use || b.peak - a.peak);
  return section('Processes', 'processes', [
    el('div', { class: 'scroll' }, [el('table', {}, [
      el('thead', {}, [el('tr', {}, columns.map(([text, , name]) =>
        el('th', { scope: 'col', class: name, text })))]),
      el('tbody', {}, sorted.slice(0, MAX_PROCESSES).map((process) => el('tr', {}, columns.map(([, read, name]) =>
        el('td', { class: name }, [read(process)]))))),
    ])]),
    sorted.length > MAX_PROCESSES ? el('p', {
      class: 'quiet', text: `and ${grouped(sorted.length - MAX_PROCESSES)} more`,
    }) : null,
    driver ? el('p', {
      class: 'quiet',
      text: 'not tracked: what the driver counts for the process and no recorded call asked for: '
        + 'CUDA’s own context and code, memory from before recording began',
    }) : null,
  ].filter(Boolean), [el('span', { class: 'quiet', text: number(processes.length, 'process') })]);
}

function aboutSection(data) {
  return section('About this recording', 'about', [
    el('p', {}, [data.about.map(([name, text]) => `${name} ${text}`).join(', ')]),
    data.notices.length
      ? el('ul', { class: 'quiet' }, data.notices.map((text) => el('li', { text }))) : null,
    el('p', {
      class: 'quiet',
      text: 'Total: bytes at or below a function, recursion once. Self: its own; a Python function '
        + 'owns what native code beneath it allocates. Sizes are binary: 1 GiB is 1024 MiB. Pinned '
        + 'host memory is never added to GPU memory.',
    }),
  ].filter(Boolean));
}
