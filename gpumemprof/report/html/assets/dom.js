// Elements. Text of a profiled program gets into the page only through `textContent`.

/**
 * An element. `options`: `text`, `class`, `on` (event → handler), `data` (dataset); everything
 * else is an attribute. `children`: elements or texts; empty ones are left out.
 */
function el(tag, options = {}, children = []) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'text') element.textContent = value;
    else if (name === 'class') element.className = value;
    else if (name === 'on') {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === 'data') Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ''));
  return element;
}

/** A size, with its exact bytes on hover. */
function sizeElement(bytes, options = {}) {
  return el('span', { text: size(bytes), title: exact(bytes), ...options });
}

let lastId = 0;

/** An id that no other element of the page has. */
function freshId(name) {
  lastId += 1;
  return `gpumemprof-${name}-${lastId}`;
}

/** A section of the page with a heading; `extra` stands beside the heading. */
function section(title, id, children, extra = []) {
  const heading = freshId(id);
  return el('section', { class: 'card', 'aria-labelledby': heading, data: { section: id } }, [
    el('header', {}, [el('h2', { id: heading, text: title }), ...extra]),
    ...children,
  ]);
}

/** The frames of a stack from its innermost node outwards. */
function stackList(model, leaf) {
  const items = [];
  for (let node = leaf; node >= 0; node = model.parent[node]) {
    const frame = model.frame[node];
    const fn = model.functionOf[frame];
    items.push(el('li', {}, [
      el('span', { class: 'name', text: model.name[fn] }),
      el('span', { class: 'quiet', text: model.place(fn, model.lineOf[frame]) }),
    ]));
  }
  return el('ol', { class: 'stack' }, items);
}

/** A select with a label. `choices`: [value, text] pairs. */
function choice(label, choices, selected, onChange) {
  const id = freshId('choice');
  const select = el(
    'select',
    { id, on: { change: () => onChange(select.value) } },
    choices.map(([value, text]) => el('option', { value, text, selected: value === selected })),
  );
  return el('span', { class: 'choice' }, [el('label', { for: id, text: label }), select]);
}

function checkbox(label, checked, title, onChange) {
  const input = el('input', {
    type: 'checkbox', checked, on: { change: () => onChange(input.checked) },
  });
  return el('label', { class: 'check', title }, [input, el('span', { text: label })]);
}

/** Calls `draw` once before the next frame, however often it is asked to. */
function onceAFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

const painters = new Set();

/** Draws again when the colours of the page change, for as long as `element` is part of it. */
function drawnInColours(element, draw) {
  for (const painter of painters) {
    const connected = painter.element.isConnected;
    if (painter.shown && !connected) painters.delete(painter);
    painter.shown = painter.shown || connected;
  }
  painters.add({ element, draw, shown: false });
}

function drawAgain() {
  for (const { element, draw } of painters) if (element.isConnected) draw();
}

window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAgain);
new MutationObserver(drawAgain)
  .observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });

/** A canvas context for an area of CSS pixels; null if it has none to draw on. */
function prepared(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  if (context) context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
