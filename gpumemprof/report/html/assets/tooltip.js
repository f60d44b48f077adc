// What is told of a node of the flame graph: beside the pointer, and below the graph.

class Tooltip {
  constructor() {
    this.element = el('div', { class: 'tooltip', role: 'tooltip', hidden: true });
  }

  show(event, content) {
    if (!this.element.isConnected) document.body.append(this.element);
    this.element.replaceChildren(...content);
    this.element.hidden = false;
    const { innerWidth, innerHeight } = window;
    const { width, height } = this.element.getBoundingClientRect();
    const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
    const top = event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18;
    this.element.style.left = `${Math.max(left, 4)}px`;
    this.element.style.top = `${Math.max(top, 4)}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

const tooltip = new Tooltip();

/** Rows of a small table: [what, size, exact, share]. */
function sizesTable(rows) {
  return el('table', { class: 'sizes' }, [el('tbody', {}, rows.map(([what, ...cells]) =>
    el('tr', {}, [el('th', { scope: 'row', text: what }), ...cells.map((text) => el('td', { text }))])))]);
}

function nodeDetails(tree, node, focus) {
  const { model } = tree;
  const fn = tree.functionAt(node);
  const whole = tree.total[ROOT];
  const origin = fn >= 0 ? ORIGIN_STYLES[model.data.origins[model.origin[fn]]].words : '';
  const lines = tree.linesOf(node).filter(([line]) => line > 0);
  const module = fn >= 0 && model.file[fn] ? model.module[fn] : '';
  const where = [
    tree.place(node),
    lines.length > 1
      ? `lines ${lines.slice(0, 5).map(([line, bytes]) => `${line} (${size(bytes)})`).join(', ')}`
        + (lines.length > 5 ? ` and ${lines.length - 5} more` : '')
      : '',
    module || (fn >= 0 && model.module[fn] !== tree.place(node) ? model.module[fn] : ''),
    origin,
  ].filter(Boolean);
  const children = [
    el('div', { class: 'name', text: tree.name(node) }),
    ...where.map((text) => el('div', { class: 'where', text })),
  ];
  if (tree.compared) {
    const row = (what, before, after) =>
      [what, size(before), size(after), change(after - before), relative(before, after)];
    return [...children, sizesTable([
      ['', 'before', 'after', 'change', ''],
      row('total', tree.before[node], tree.total[node]),
      row('self', tree.selfBefore[node], tree.self[node]),
    ]), el('div', {
      class: 'where', text: `exactly ${grouped(tree.before[node])} → ${exact(tree.total[node])}`,
    })];
  }
  const row = (what, bytes) => [what, size(bytes), exact(bytes), share(bytes, whole)];
  children.push(sizesTable([row('total', tree.total[node]), row('self', tree.self[node])]));
  if (focus !== ROOT && node !== focus && tree.total[focus]) {
    children.push(el('div', {
      class: 'where',
      text: `${share(tree.total[node], tree.total[focus])} of ${tree.name(focus)}`,
    }));
  }
  if (tree.counts[node]) {
    children.push(el('div', { class: 'where', text: number(tree.counts[node], 'allocation') }));
  }
  return children;
}
