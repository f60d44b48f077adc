// Where the boxes of a flame graph are: only those at least a pixel wide, row by row.

const ROW = 21;
const NARROWEST = 1;

/** Columns `node` (-1: several that are too narrow), `x`, `width` in pixels; `rows`: where each row
 * begins. */
class Layout {
  constructor(tree, focus, width) {
    this.node = [];
    this.x = [];
    this.width = [];
    this.rows = [];
    for (const above of tree.path(focus)) {
      this.rows.push(this.node.length);
      this._box(above, 0, width);
    }
    const scale = tree.weight[focus] ? width / tree.weight[focus] : 0;
    let [from, to] = [this.node.length - 1, this.node.length];
    while (from < to) {
      this.rows.push(to);
      for (let parent = from; parent < to; parent += 1) {
        if (this.node[parent] >= 0) this._beneath(tree, parent, scale);
      }
      [from, to] = [to, this.node.length];
    }
    this.rows.pop(); // the last one is empty
  }

  _box(node, x, width) {
    this.node.push(node);
    this.x.push(x);
    this.width.push(width);
  }

  /** Children of a box, the largest first: after the first narrow one all are. */
  _beneath(tree, parent, scale) {
    const children = tree.childrenOf(this.node[parent]);
    let left = this.x[parent];
    let at = 0;
    for (; at < children.length; at += 1) {
      const width = tree.weight[children[at]] * scale;
      if (width < NARROWEST) break;
      this._box(children[at], left, width);
      left += width;
    }
    let rest = 0;
    for (; at < children.length; at += 1) rest += tree.weight[children[at]] * scale;
    if (rest >= NARROWEST) this._box(-1, left, rest); // together they can be seen
  }

  get height() {
    return this.rows.length * ROW;
  }

  /** One past the last box of a row. */
  endOf(row) {
    return row + 1 < this.rows.length ? this.rows[row + 1] : this.node.length;
  }

  /** The node at a place, -1 for none. */
  at(x, y) {
    const row = Math.floor(y / ROW);
    if (row < 0 || row >= this.rows.length) return -1;
    const end = this.endOf(row);
    let [low, high] = [this.rows[row], end];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.x[middle] + this.width[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low < end && this.x[low] <= x ? this.node[low] : -1;
  }
}
