// A section for each place at which allocations failed: what was asked, what there was, by whom
// it was held, and the stack.

function failureCards(model) {
  return model.data.failures.map((failure, at) => failureCard(model, failure, at === 0));
}

function failureCard(model, failure, open) {
  const facts = [
    ['Asked for', size(failure.requested), exact(failure.requested)],
    ['Free', failure.free === null ? 'not known' : size(failure.free),
      failure.free === null ? 'the program never asked the driver'
        : `${exact(failure.free)}, as the driver last told the program`
          + (failure.mismatch ? `; ${failure.mismatch}` : '')],
    ['GPU has', failure.total === null ? 'not known' : size(failure.total),
      failure.total === null ? '' : exact(failure.total)],
    ['The process held', size(failure.in_use), exact(failure.in_use)],
  ];
  const body = el('div', { class: 'failure-body' });
  const details = el('details', {
    class: 'failure',
    on: {
      toggle: () => {
        if (details.open && !body.childElementCount) body.append(...failureBody(model, failure));
      },
    },
  }, [
    el('summary', {}, [
      el('strong', { text: `${failure.call} asked for ${size(failure.requested)}` }),
      el('span', {
        text: [failure.when, failure.where].filter(Boolean).join(', ')
          + (failure.times > 1 ? `; ${grouped(failure.times)} times here, the last one is told` : ''),
      }),
      el('span', { class: 'error', text: failure.error }),
    ]),
    el('dl', { class: 'facts' }, facts.map(([what, text, precisely]) => el('div', {}, [
      el('dt', { text: what }), el('dd', { text, title: precisely }),
      el('dd', { class: 'quiet', text: precisely }),
    ]))),
    memoryBar(failure),
    body,
  ]);
  details.open = open;
  return details;
}

/** How much was held, by others, free, and asked for, where the driver told. */
function memoryBar(failure) {
  if (failure.free === null || !failure.total) return null;
  if (failure.mismatch) return heldBar(failure);
  // Of what is far more than the GPU has, only the beginning is drawn.
  const whole = Math.min(
    Math.max(failure.total, failure.total - failure.free + failure.requested), 1.4 * failure.total);
  const held = failure.in_use;
  const rest = failure.total - failure.free - held;
  const part = (name, bytes, words) => barPart(name, bytes, whole, words);
  const words = `held by the process ${size(held)}, by others or CUDA itself ${size(rest)}, `
    + `free ${size(failure.free)}, asked for ${size(failure.requested)}`;
  return barOf(words, [
    part('held', held, 'held by the process'),
    part('others', rest, 'held by others or CUDA itself'),
    part('free', failure.free, 'free'),
  ]);
}

/** Where the driver's figure does not go with what was held: that alone, of what the GPU has. */
function heldBar(failure) {
  const whole = Math.max(failure.total, failure.in_use);
  const words = `held by the process ${size(failure.in_use)}, asked for ${size(failure.requested)}; `
    + failure.mismatch;
  return barOf(words, [
    barPart('held', failure.in_use, whole, 'held by the process'),
    barPart('unknown', whole - failure.in_use, whole, 'not known'),
  ]);
}

function barPart(name, bytes, whole, words) {
  const element = el('span', { class: name, title: `${words}: ${exact(bytes)}` });
  element.style.width = `${(100 * bytes) / whole}%`;
  return element;
}

function barOf(words, parts) {
  return el('div', {}, [
    el('div', { class: 'memory-bar', role: 'img', 'aria-label': words }, parts),
    el('p', { class: 'quiet', text: words }),
  ]);
}

function failureBody(model, failure) {
  const parts = [
    el('h3', { text: 'Stack, from the call outwards' }),
    stackList(model, failure.node),
  ];
  if (!failure.live.sample.length) return parts;
  const bytes = new Float64Array(model.size);
  failure.live.sample.forEach((sample, at) => {
    bytes[sample] += failure.live.bytes[at];
  });
  const weights = Weights.of(model, bytes);
  const samples = [...new Set(failure.live.sample)];
  const whole = model.sum(samples, bytes);
  const known = failure.live_omitted
    ? `${size(whole)} in the largest stacks; ${size(failure.live_omitted)} more elsewhere`
    : `${size(whole)}, all of it`;
  const flame = new Flame({
    label: 'What was held when the allocation failed, as a flame graph',
    onSelect() {},
    onZoom() {},
  });
  const owners = sortRows(model, functionRows(model, samples, weights), 'self', true)
    .filter((row) => row.self);
  parts.push(
    el('h3', { text: 'What was held then' }),
    el('p', { class: 'quiet', text: known }),
    el('div', { class: 'scroll' }, [el('table', { class: 'functions live' }, [el('tbody', {}, owners.slice(0, 10).map((row) =>
      el('tr', {}, [
        el('td', { class: 'number', text: size(row.self), title: exact(row.self) }),
        el('td', { class: 'number quiet', text: share(row.self, whole) }),
        el('td', { class: 'name', text: model.name[row.fn] }),
        el('td', { class: 'place', text: model.place(row.fn, row.line) }),
      ])))])]),
    flame.element,
  );
  flame.show(new Tree(model, samples, { title: 'held when it failed', weights }));
  return parts;
}
