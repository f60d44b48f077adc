// Draws the boxes of a flame graph.

const GAP = 1;
const PAD = 5;
const FONT = '12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';

class Painter {
  constructor(tree) {
    this.tree = tree;
    this.colours = new Array(tree.size);
    this.patterns = null;
  }

  /**
   * The rows of `layout` that are in sight from `top` on, `height` pixels. `state`: `focus`,
   * `selected`, `hovered` (nodes), `matches` (of functions, or null); `style`: of the element.
   */
  paint(context, layout, state, style, top, height) {
    this.context = context;
    this.state = state;
    this.paper = parseColour(style.backgroundColor);
    this.ink = style.color;
    context.font = FONT;
    context.textBaseline = 'middle';
    this.charWidth = context.measureText('0123456789').width / 10;
    this.patterns = this.patterns || Object.fromEntries(
      Object.entries(ORIGIN_STYLES).map(([name, of]) => [name, originPattern(context, of.pattern)]));
    const last = Math.min(Math.ceil((top + height) / ROW), layout.rows.length);
    for (let row = Math.max(Math.floor(top / ROW), 0); row < last; row += 1) {
      for (let box = layout.rows[row]; box < layout.endOf(row); box += 1) {
        const width = Math.max(layout.width[box] - GAP, 0.5);
        const area = { x: layout.x[box], y: row * ROW - top, width, height: ROW - GAP };
        this._box(layout.node[box], area, row < this.tree.depth[state.focus]);
      }
    }
  }

  _box(node, area, above) {
    const { context, tree, state } = this;
    if (node < 0) {
      this._fill({ ...area, y: area.y + area.height / 2 - 1, height: 2 },
        css(mixed(this.paper, GROUP, 0.5)));
      return;
    }
    const fn = tree.functionAt(node);
    const marked = state.matches && fn >= 0 && state.matches(fn);
    let rgb = this._colour(node, fn);
    if (state.matches && !marked) rgb = mixed(rgb, this.paper, 0.72);
    else if (above) rgb = mixed(rgb, this.paper, 0.45);
    this._fill(area, css(rgb));
    if (fn >= 0 && !tree.compared && area.width > 4) {
      const pattern = this.patterns[tree.model.data.origins[tree.model.origin[fn]]];
      if (pattern) this._fill(area, pattern);
    }
    if (node === state.selected || node === state.hovered || marked) {
      context.strokeStyle = this.ink;
      context.lineWidth = node === state.selected ? 2.5 : 1.2;
      const inset = context.lineWidth / 2;
      context.strokeRect(area.x + inset, area.y + inset, Math.max(area.width - 2 * inset, 0.5),
        area.height - 2 * inset);
    }
    if (area.width > 3 * this.charWidth + 2 * PAD) this._text(node, area, textOn(rgb));
  }

  _fill(area, style) {
    this.context.fillStyle = style;
    this.context.fillRect(area.x, area.y, area.width, area.height);
  }

  _colour(node, fn) {
    const { tree } = this;
    if (!this.colours[node]) {
      this.colours[node] = tree.compared
        ? changeColour(tree.before[node], tree.total[node]) : originColour(tree.model, fn);
    }
    return this.colours[node];
  }

  /** The name; where there is room its size at the right, and its file and line. */
  _text(node, area, ink) {
    const { context, tree, charWidth } = this;
    const room = Math.floor((area.width - 2 * PAD) / charWidth);
    const middle = area.y + area.height / 2 + 0.5;
    const bytes = tree.compared ? change(tree.total[node] - tree.before[node]) : size(tree.total[node]);
    const place = tree.place(node);
    const text = shortened(tree.name(node), room);
    context.save();
    if (!isNarrow(text) || !isNarrow(place)) {
      context.beginPath();
      context.rect(area.x, area.y, area.width, area.height);
      context.clip();
    }
    context.fillStyle = ink;
    context.fillText(text, area.x + PAD, middle);
    const used = text.length + bytes.length + 2;
    if (used <= room) {
      context.globalAlpha = ink === DARK_INK ? 0.8 : 0.95;
      context.fillText(bytes, area.x + area.width - PAD - bytes.length * charWidth, middle);
      if (place && used + 10 <= room) {
        context.fillText(cutLeft(place, room - used - 2),
          area.x + PAD + (text.length + 2) * charWidth, middle);
      }
    }
    context.restore();
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
