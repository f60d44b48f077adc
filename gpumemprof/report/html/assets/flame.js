// The flame graph: an icicle on a canvas, the root at the top, larger ones to the left.
//
// Only what is at least a pixel wide is laid out, and only rows in sight are drawn, so that the
// number of stacks hardly matters.

const ROW = 21;
const GAP = 1;
const NARROWEST = 1;
const PAD = 5;
const FONT = '12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';

class Flame {
  /**
   * `options`: `label`, `onSelect(node)` when a node is pointed at, clicked or reached by keys,
   * `onZoom(node)`, `weights()`.
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
    this.colours = new Array(tree.size);
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

  /** Finds what is wide enough to be seen, row by row. */
  _layout() {
    const { tree } = this;
    this.width = this.scroller.clientWidth;
    if (!tree || !this.width) return;
    const [node, x, wide, rows] = [[], [], [], []];
    const box = (of, at, width) => {
      node.push(of);
      x.push(at);
      wide.push(width);
    };
    for (const above of tree.path(this.focus)) {
      rows.push(node.length);
      box(above, 0, this.width);
    }
    const scale = tree.weight[this.focus] ? this.width / tree.weight[this.focus] : 0;
    let [from, to] = [node.length - 1, node.length];
    while (from < to) {
      rows.push(to);
      for (let parent = from; parent < to; parent += 1) {
        if (node[parent] < 0) continue;
        let left = x[parent];
        const children = tree.childrenOf(node[parent]);
        let rest = 0;
        let at = 0;
        for (; at < children.length; at += 1) {
          const width = tree.weight[children[at]] * scale;
          if (width < NARROWEST) break;
          box(children[at], left, width);
          left += width;
        }
        for (; at < children.length; at += 1) rest += tree.weight[children[at]] * scale;
        if (rest >= NARROWEST) box(-1, left, rest); // together they can be seen
      }
      [from, to] = [to, node.length];
    }
    Object.assign(this, { boxNode: node, boxX: x, boxWidth: wide, rows });
    this.sizer.style.height = `${(rows.length - 1) * ROW + 2}px`;
    this.redraw();
  }

  _draw() {
    const height = this.scroller.clientHeight;
    if (!this.rows || !height) return;
    const context = prepared(this.canvas, this.width, height);
    if (!context) return;
    const style = getComputedStyle(this.scroller);
    this._paper = parseColour(style.backgroundColor);
    this._ink = style.color;
    context.clearRect(0, 0, this.width, height);
    context.font = FONT;
    context.textBaseline = 'middle';
    this._charWidth = context.measureText('0123456789').width / 10;
    this._patterns = this._patterns || Object.fromEntries(
      Object.entries(ORIGIN_STYLES).map(([name, of]) => [name, originPattern(context, of.pattern)]));
    const top = this.scroller.scrollTop;
    const first = Math.max(Math.floor(top / ROW), 0);
    const last = Math.min(Math.ceil((top + height) / ROW), this.rows.length - 1);
    for (let row = first; row < last; row += 1) {
      for (let box = this.rows[row]; box < this._rowEnd(row); box += 1) {
        this._drawBox(context, box, row * ROW - top, row < this.tree.depth[this.focus]);
      }
    }
  }

  _rowEnd(row) {
    return row + 1 < this.rows.length ? this.rows[row + 1] : this.boxNode.length;
  }

  _drawBox(context, box, y, above) {
    const { tree } = this;
    const node = this.boxNode[box];
    const left = this.boxX[box];
    const width = Math.max(this.boxWidth[box] - GAP, 0.5);
    const height = ROW - GAP;
    if (node < 0) {
      context.fillStyle = css(mixed(this._paper, GROUP, 0.5));
      context.fillRect(left, y + height / 2 - 1, width, 2);
      return;
    }
    const fn = tree.functionAt(node);
    const marked = this.matches && fn >= 0 && this.matches(fn);
    let rgb = this.colours[node] || (this.colours[node] = tree.compared
      ? changeColour(tree.before[node], tree.total[node]) : originColour(tree.model, fn));
    if (this.matches && !marked) rgb = mixed(rgb, this._paper, 0.72);
    else if (above) rgb = mixed(rgb, this._paper, 0.45);
    context.fillStyle = css(rgb);
    context.fillRect(left, y, width, height);
    if (fn >= 0 && !tree.compared && width > 4) {
      const pattern = this._patterns[tree.model.data.origins[tree.model.origin[fn]]];
      if (pattern) {
        context.fillStyle = pattern;
        context.fillRect(left, y, width, height);
      }
    }
    if (node === this.selected || node === this.hovered || marked) {
      context.strokeStyle = this._ink;
      context.lineWidth = node === this.selected ? 2.5 : 1.2;
      const inset = context.lineWidth / 2;
      context.strokeRect(left + inset, y + inset, Math.max(width - 2 * inset, 0.5),
        height - 2 * inset);
    }
    if (width > 3 * this._charWidth + 2 * PAD) {
      this._drawText(context, node, left, y, width, height, rgb);
    }
  }

  /** The name; where there is room its file and line, and at the right its size. */
  _drawText(context, node, left, y, width, height, rgb) {
    const { tree } = this;
    const room = Math.floor((width - 2 * PAD) / this._charWidth);
    const middle = y + height / 2 + 0.5;
    const ink = textOn(rgb);
    const bytes = tree.compared ? change(tree.total[node] - tree.before[node]) : size(tree.total[node]);
    const name = node === ROOT ? this.options.rootName() : tree.name(node);
    const place = tree.place(node);
    const text = shortened(name, room);
    context.save();
    if (!isNarrow(text) || !isNarrow(place)) {
      context.beginPath();
      context.rect(left, y, width, height);
      context.clip();
    }
    const pale = ink === DARK_INK ? 0.8 : 0.95;
    context.fillStyle = ink;
    context.fillText(text, left + PAD, middle);
    let used = text.length;
    if (used + bytes.length + 2 <= room) {
      context.globalAlpha = pale;
      context.fillText(bytes, left + width - PAD - bytes.length * this._charWidth, middle);
      used += bytes.length + 2;
      if (place && used + 10 <= room) {
        context.globalAlpha = pale;
        context.fillText(cutLeft(place, room - used - 2),
          left + PAD + (text.length + 2) * this._charWidth, middle);
      }
    }
    context.restore();
  }

  /** The box at a place of the page, -1 for none. */
  _at(event) {
    if (!this.rows) return -1;
    const area = this.scroller.getBoundingClientRect();
    const x = event.clientX - area.left - this.scroller.clientLeft;
    const y = event.clientY - area.top - this.scroller.clientTop + this.scroller.scrollTop;
    const row = Math.floor(y / ROW);
    if (row < 0 || row >= this.rows.length - 1) return -1;
    let [low, high] = [this.rows[row], this._rowEnd(row)];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.boxX[middle] + this.boxWidth[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low < this._rowEnd(row) && this.boxX[low] <= x ? low : -1;
  }

  _hover(event) {
    const box = this._at(event);
    const node = box < 0 ? -1 : this.boxNode[box];
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
    const box = this._at(event);
    if (box < 0 || this.boxNode[box] < 0) return;
    const node = this.boxNode[box];
    this.zoom(node);
    this.select(node);
  }

  /** Scrolls so that a node's row is in sight, and zooms out where it is not on the graph. */
  _reveal(node) {
    const { tree } = this;
    const inFocus = tree.path(node).includes(this.focus) || tree.path(this.focus).includes(node);
    const narrow = tree.weight[node] * this.width < NARROWEST * tree.weight[this.focus];
    if (!inFocus || narrow) {
      let around = node;
      const all = tree.weight[ROOT];
      while (around !== ROOT && tree.weight[around] * 20 < all * 0.02) around = tree.parent[around];
      this.zoom(narrow ? node : around === node ? tree.parent[node] : around);
    }
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
      open.push(...this.tree.childrenOf(at).slice().reverse());
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

/** `text` in at most `room` characters, its end kept: names are told apart by their ends. */
function cutLeft(text, room) {
  if (text.length <= room) return text;
  return room < 2 ? '' : `…${text.slice(text.length - room + 1)}`;
}

/** `name` in at most `room` characters: without what it is in, if need be cut at its end. */
function shortened(name, room) {
  if (name.length <= room) return name;
  const inner = name.replace(/^.*(?:::|\.)(?=[^:.>)]+(?:\(\))?$)/, '');
  if (inner.length + 1 <= room) return cutLeft(name, room);
  return room < 3 ? '' : `${inner.slice(0, room - 1)}…`;
}

/** Whether every character has the width of a digit, as far as we know. */
function isNarrow(text) {
  return /^[\x20-\x7e…]*$/.test(text);
}

function parseColour(text) {
  const parts = text.match(/[\d.]+/g) || ['255', '255', '255'];
  return parts.slice(0, 3).map(Number);
}
