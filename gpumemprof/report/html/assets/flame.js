// The flame graph: an icicle on a canvas, the root at the top, larger ones to the left.
//
// Only what is at least a pixel wide is laid out (layout.js), and only rows in sight are drawn
// (painter.js), so that the number of stacks hardly matters.

class Flame {
  /**
   * `options`: `label`, `onSelect(node)` when a node is clicked or reached by keys, `onZoom(node)`.
   */
  constructor(options) {
    this.options = options;
    this.canvas = el('canvas', { 'aria-hidden': 'true' });
    this.sizer = el('div', { class: 'sizer' }, [this.canvas]);
    this.hint = freshId('keys');
    this.scroller = el('div', {
      class: 'flame',
      tabindex: '0',
      role: 'application',
      'aria-label': options.label,
      'aria-describedby': this.hint,
      on: {
        scroll: () => this.redraw(),
        mousemove: (event) => this._hover(event),
        mouseleave: () => this._leave(),
        click: (event) => this._click(event),
        dblclick: () => this.zoom(ROOT),
        keydown: (event) => this._key(event),
        focus: () => this.redraw(),
        blur: () => this.redraw(),
      },
    }, [this.sizer]);
    this.live = el('div', { class: 'hidden', 'aria-live': 'polite' });
    this.element = el('div', { class: 'flame-box' }, [
      this.scroller,
      el('p', {
        class: 'keys',
        id: this.hint,
        text: 'Click or Enter: zoom. Double click or Esc: back to all. Arrows: walk. '
          + '/: search, n: next match.',
      }),
      this.live,
    ]);
    this.redraw = onceAFrame(() => this._draw());
    this.matches = null;
    new ResizeObserver(() => this._layout()).observe(this.scroller);
    drawnInColours(this.element, this.redraw);
  }

  /** Shows another tree; stays at the function that was zoomed to, where it has one. */
  show(tree) {
    const path = this.tree ? this.tree.path(this.focus).map((node) => this.tree.name(node)) : [];
    this.tree = tree;
    this.painter = new Painter(tree);
    this.selected = -1;
    this.hovered = -1;
    this.focus = this._follow(path.slice(1));
    this._layout();
    this.options.onZoom(this.focus);
  }

  _follow(names) {
    let node = ROOT;
    for (const name of names) {
      const next = [...this.tree.childrenOf(node)].find((child) => this.tree.name(child) === name);
      if (next === undefined || !this.tree.weight[next]) return ROOT;
      node = next;
    }
    return node;
  }

  /** Marks functions; `matches(fn)`, or null for none. */
  mark(matches) {
    this.matches = matches;
    this.redraw();
  }

  zoom(node) {
    if (!this.tree.weight[node] && node !== ROOT) return;
    this.focus = node;
    this._layout();
    this.options.onZoom(node);
  }

  select(node) {
    if (node === this.selected) return;
    this.selected = node;
    this._reveal(node);
    this.redraw();
    this.options.onSelect(node);
    this.live.textContent = this._describe(node);
  }

  _describe(node) {
    const { tree } = this;
    return `${tree.name(node)} ${tree.place(node)}: total ${size(tree.total[node])}, `
      + `${share(tree.total[node], tree.total[ROOT])}; self ${size(tree.self[node])}`;
  }

  _layout() {
    this.width = this.scroller.clientWidth;
    if (!this.tree || !this.width) return;
    this.layout = new Layout(this.tree, this.focus, this.width);
    this.sizer.style.height = `${this.layout.height + 2}px`;
    this.redraw();
  }

  _draw() {
    const height = this.scroller.clientHeight;
    const context = this.layout && height && prepared(this.canvas, this.width, height);
    if (!context) return;
    context.clearRect(0, 0, this.width, height);
    this.painter.paint(context, this.layout, this, getComputedStyle(this.scroller),
      this.scroller.scrollTop, height);
  }

  _at(event) {
    if (!this.layout) return -1;
    const { scroller } = this;
    const area = scroller.getBoundingClientRect();
    return this.layout.at(event.clientX - area.left - scroller.clientLeft,
      event.clientY - area.top - scroller.clientTop + scroller.scrollTop);
  }

  _hover(event) {
    const node = this._at(event);
    if (node !== this.hovered) {
      this.hovered = node;
      this.scroller.style.cursor = node < 0 ? '' : 'pointer';
      this.redraw();
    }
    if (node >= 0) tooltip.show(event, nodeDetails(this.tree, node, this.focus));
    else tooltip.hide();
  }

  _leave() {
    this.hovered = -1;
    tooltip.hide();
    this.redraw();
  }

  _click(event) {
    const node = this._at(event);
    if (node < 0) return;
    this.zoom(node);
    this.select(node);
  }

  /** Zooms as far as a node needs to be on the graph, and scrolls to its row. */
  _reveal(node) {
    const { tree } = this;
    const path = tree.path(node);
    let around = this.focus;
    while (!path.includes(around) && !tree.path(around).includes(node)) around = tree.parent[around];
    if (tree.weight[node] * this.width < NARROWEST * tree.weight[around]) around = node;
    if (around !== this.focus) this.zoom(around);
    const y = tree.depth[node] * ROW;
    if (y < this.scroller.scrollTop) this.scroller.scrollTop = y;
    const bottom = y + ROW - this.scroller.clientHeight;
    if (bottom > this.scroller.scrollTop) this.scroller.scrollTop = bottom;
  }

  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tree } = this;
    const at = this.selected < 0 ? this.focus : this.selected;
    const actions = {
      ArrowDown: () => tree.childrenOf(at)[0],
      ArrowUp: () => (at === ROOT ? ROOT : tree.parent[at]),
      ArrowRight: () => this._sibling(at, 1),
      ArrowLeft: () => this._sibling(at, -1),
      Home: () => ROOT,
      Enter: () => {
        this.zoom(at);
        return at;
      },
      ' ': () => {
        this.zoom(at);
        return at;
      },
      Escape: () => {
        this.zoom(ROOT);
        return at;
      },
      Backspace: () => {
        this.zoom(Math.max(tree.parent[this.focus], ROOT));
        return at;
      },
      n: () => this._match(at, 1),
      N: () => this._match(at, -1),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    const next = this.selected < 0 && event.key.startsWith('Arrow') ? at : actions[event.key]();
    if (next !== undefined && next >= 0 && (tree.weight[next] || next === ROOT)) this.select(next);
  }

  _sibling(node, step) {
    if (node === ROOT) return ROOT;
    const siblings = this.tree.childrenOf(this.tree.parent[node]);
    return siblings[siblings.indexOf(node) + step];
  }

  /** The next marked node after `node`, from the top down, left to right, round and round. */
  _match(node, step) {
    if (!this.matches) return undefined;
    const found = [];
    const open = [ROOT];
    while (open.length) {
      const at = open.pop();
      const fn = this.tree.functionAt(at);
      if (this.tree.weight[at] && (at === node || (fn >= 0 && this.matches(fn)))) found.push(at);
      for (const child of this.tree.childrenOf(at).slice().reverse()) open.push(child);
    }
    const matching = (at) => this.tree.functionAt(at) >= 0 && this.matches(this.tree.functionAt(at));
    const start = found.indexOf(node);
    for (let tried = 1; tried <= found.length; tried += 1) {
      const next = found[(start + step * tried + found.length * tried) % found.length];
      if (matching(next)) return next;
    }
    return undefined;
  }
}
