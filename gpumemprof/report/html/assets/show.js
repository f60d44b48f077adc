// The page: puts the parts together and keeps them in step.

class Page {
  constructor(data) {
    this.model = new Model(data);
    const { model } = this;
    this.type = data.view;
    this.filters = { kind: GPU, process: '', pod: '', device: '' };
    if (!model.select(this.filters).length && model.size) this.filters.kind = model.valuesOf('kind')[0];
    this.group = this._usualGroup();
    this.lines = false;
    this.native = true;
    this.owners = false;
    this.types = new TypeSwitch(this.type, (type) => {
      this.type = type;
      this.update();
    });
    this.searchBox = el('input', {
      type: 'search',
      placeholder: 'Search (/)',
      'aria-label': 'Search functions, files and libraries',
      on: {
        input: () => this.search(this.searchBox.value),
        keydown: (event) => {
          if (event.key === 'Enter') this.flame.scroller.focus();
          if (event.key === 'Enter') this.flame._key(new KeyboardEvent('keydown', { key: 'n' }));
        },
      },
    });
    this.found = el('output', { class: 'found' });
    this.flame = new Flame({
      label: 'Flame graph: the root at the top, width is memory',
      onSelect: (node) => this.details(node),
      onZoom: () => this.zoomed(),
    });
    this.detailsBox = el('div', { class: 'details', 'aria-label': 'Selected function' });
    this.crumbs = el('nav', { class: 'crumbs', 'aria-label': 'Zoomed to' });
    this.timelineBox = el('div');
    this.growth = data.growth.stacks.length ? new GrowthTable(model) : null;
    this.table = new FunctionTable(model, (fn) => this.pick(fn));
    this.element = el('div', { class: 'report' }, this._parts());
    this.update();
  }

  /** Processes must not merge where there are several. */
  _usualGroup() {
    if (this.model.before) return '';
    const { model } = this;
    const [pods, processes] = ['pod', 'each'].map((name) => model.valuesOf(name).length);
    if (pods > 1 && processes === pods) return 'pod';
    if (processes > 1) return pods ? 'each' : 'process';
    return '';
  }

  /** [dimension, words] pairs to group by; more than one if there is anything to group. */
  _groups() {
    const { model } = this;
    if (model.before) {
      return [['', 'nothing'], ...['pod', 'device'].filter((name) => model.hasSeveral(name))
        .map((name) => [name, name])];
    }
    const each = model.hasSeveral('each') && model.valuesOf('pod').length;
    return [['', 'nothing'], ...DIMENSIONS.filter(([name]) => model.hasSeveral(name))
      .map(([name, label]) => [name, label.toLowerCase()]),
    ...(each ? [['each', 'pod and process']] : [])];
  }

  _parts() {
    const { model } = this;
    const { data } = model;
    const toolbar = el('div', { class: 'toolbar' }, [
      this.types.element,
      ...filterControls(model, this.filters, () => this.update()),
      el('div', { class: 'search' }, [this.searchBox, this.found]),
    ]);
    const groups = this._groups();
    const options = [
      groups.length > 1 ? choice('Group by', groups, this.group, (value) => {
        this.group = value;
        this.update();
      }) : null,
      checkbox('Callers', this.owners, 'Who owns the memory at the top, beneath it its callers', (on) => {
        this.owners = on;
        this.update();
      }),
      checkbox('Native code', this.native, 'Show C and C++ functions between Python and CUDA', (on) => {
        this.native = on;
        this.update();
      }),
      checkbox('Lines', this.lines, 'Keep calls from different lines apart', (on) => {
        this.lines = on;
        this.update();
      }),
    ];
    const graph = section('Flame graph', 'flame', [
      this.crumbs,
      this.flame.element,
      this.detailsBox,
    ], [legend(model), ...options]);
    return [
      reportHeader(model),
      ...banners(data),
      toolbar,
      data.timeline ? section('Memory over time', 'timeline', [this.timelineBox]) : null,
      this.growth ? this.growth.element : null,
      graph,
      this.table.element,
      failuresSection(model),
      processesSection(data),
      aboutSection(data),
    ];
  }

  rootName() {
    const kind = this.filters.kind === GPU ? 'GPU memory' : `${this.filters.kind.replaceAll('_', ' ')} memory`;
    return `${kind} ${SHOWN_TYPES.find((one) => one.type === this.type).words}`;
  }

  /** Everything that follows from what was chosen. */
  update() {
    const { model } = this;
    const { data } = model;
    const samples = model.select(this.filters);
    const weights = new Weights(model, this.type);
    const rows = functionRows(model, samples, weights);
    let hidden = null;
    if (!this.native) {
      hidden = new Uint8Array(model.name.length);
      for (const row of rows) {
        if (row.internal && model.data.origins[model.origin[row.fn]] === 'native') hidden[row.fn] = 1;
      }
    }
    const held = samples.filter((sample) => weights.bytes[sample] || weights.before?.[sample]);
    const tree = new Tree(model, held, {
      title: this.rootName(), weights, hidden, group: this.group, lines: this.lines, owners: this.owners,
    });
    this.types.show(Object.fromEntries(SHOWN_TYPES.map(({ type }) => [type, [
      model.sum(samples, model.values[type]),
      model.before ? model.sum(samples, model.before[type]) : null,
    ]])));
    const filters = JSON.stringify(this.filters);
    if (data.timeline && this.drawnOf !== filters) {
      this.drawnOf = filters;
      this.timelineBox.replaceChildren(new Timeline(combined(model, this.filters)).element);
    }
    if (this.growth) this.growth.show(model.passing(this.filters));
    this.flame.show(tree);
    this.table.show(rows, tree.total[ROOT], this.rootName());
    this.details(-1);
    this.tellFound();
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    const { searched } = this.model;
    this.table.pick(null);
    this.flame.mark(wanted ? (fn) => searched[fn].includes(wanted) : null);
    this.tellFound();
  }

  /** Marks one function of the table on the graph. */
  pick(fn) {
    this.searchBox.value = fn === null ? '' : this.model.name[fn];
    const matches = fn === null ? null : (other) => other === fn;
    if (matches && !this.flame.tree.matched(this.flame.focus, matches).count) this.flame.zoom(ROOT);
    this.flame.mark(matches);
    this.table.pick(fn);
    this.tellFound();
  }

  tellFound() {
    const { tree, matches, focus } = this.flame;
    if (!matches) {
      this.found.textContent = '';
      return;
    }
    const { bytes, count } = tree.matched(focus, matches);
    this.found.title = exact(bytes);
    if (count) {
      this.found.textContent = `${share(bytes, tree.total[focus])} matched: ${size(bytes)} in `
        + number(count, 'place');
      return;
    }
    const all = tree.matched(ROOT, matches);
    this.found.textContent = all.count
      ? `nothing here; ${share(all.bytes, tree.total[ROOT])} of all: ${size(all.bytes)}`
      : 'nothing matches';
  }

  zoomed() {
    const { tree, focus } = this.flame;
    this.tellFound();
    const path = tree.path(focus);
    this.crumbs.hidden = focus === ROOT;
    const shown = path.length > 6 ? [path[0], -1, ...path.slice(-4)] : path;
    this.crumbs.replaceChildren(...shown.map((node) => {
      if (node < 0) return el('span', { text: '…' });
      const name = node === ROOT ? 'all' : tree.name(node);
      return node === focus && node !== ROOT ? el('span', { 'aria-current': 'true', text: cutLeft(name, 60) })
        : el('button', {
          type: 'button',
          text: cutLeft(name, 40),
          on: { click: () => this.flame.zoom(node) },
        });
    }));
  }

  /** Below the graph, as text that can be copied: the selected node and its callers. */
  details(node) {
    if (node < 0) {
      this.detailsBox.replaceChildren();
      return;
    }
    const { tree } = this.flame;
    const callers = tree.path(node).reverse().slice(1, -1);
    this.detailsBox.replaceChildren(
      ...nodeDetails(tree, node, this.flame.focus),
      callers.length ? el('details', {}, [
        el('summary', { text: number(callers.length, 'caller') }),
        el('ol', { class: 'stack' }, callers.map((caller) => el('li', {}, [
          el('span', { class: 'name', text: tree.name(caller) }),
          el('span', { class: 'quiet', text: tree.place(caller) }),
        ]))),
      ]) : '',
    );
  }
}

/** Draws `data` into `element` in place of what it holds. */
function show(data, element = document.querySelector('main')) {
  const page = new Page(data);
  tooltip.hide();
  element.replaceChildren(page.element);
  page.flame.redraw();
  return page;
}

window.gpumemprof = { show, timeline: (data) => new Timeline(data).element };

document.addEventListener('keydown', (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key !== '/' || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const box = document.querySelector('.search input');
  if (!box) return;
  event.preventDefault();
  box.focus();
  box.select();
});

const embedded = document.getElementById('gpumemprof-data');
if (embedded) {
  try {
    show(JSON.parse(embedded.textContent));
  } catch (error) {
    document.querySelector('main').append(el('p', {
      class: 'banner bad', role: 'alert', text: `This report cannot be shown: ${error.message}`,
    }));
    throw error;
  }
}
