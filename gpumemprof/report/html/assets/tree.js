// Stacks of the chosen samples as the tree that a flame graph draws.

const ROOT = 0;

/**
 * `options`: `weights`; `group` (a dimension, or empty) puts a node for each of its values above
 * the stacks; `lines` keeps calls from different lines apart; `hidden` (one flag for each
 * function) leaves functions out, whose bytes then end in their callers.
 */
class Tree {
  constructor(model, samples, options) {
    this.model = model;
    this.lines = Boolean(options.lines);
    this.compared = options.weights.before !== null;
    this.groups = [];
    // One entry for each node of this tree:
    this.parent = [-1];
    this.frame = [-1]; // the first of its frames; -2 - number of a group; -1 the root
    this.depth = [0];
    this.self = [0];
    this.selfBefore = [0];
    this._ends = [0]; // bytes of the stacks that end here
    this._endsBefore = [0];
    this._counts = [0];
    this._several = new Set(); // nodes of frames with different lines
    // One for each pair of a group and a node of the data, to tell the lines of a node:
    this._pairFrame = [];
    this._pairNode = [];
    this._pairParent = [];
    this._pairBytes = [];
    this._add(samples, options);
    this._sum();
    this._arrange();
  }

  get size() {
    return this.parent.length;
  }

  _add(samples, { weights, group, hidden }) {
    const { model } = this;
    const stride = Math.max(model.name.length, model.functionOf.length) + 1;
    const children = new Map();
    const pairAt = new Int32Array(model.parent.length);
    const groupAt = new Int32Array(model.parent.length).fill(-1);
    const path = [];
    this._grouped(samples, group).forEach(([name, members], number) => {
      const top = name === null ? ROOT : this._node(ROOT, -2 - this.groups.push(name) + 1);
      for (const sample of members) {
        let node = model.node[sample];
        for (; node >= 0 && groupAt[node] !== number; node = model.parent[node]) path.push(node);
        let pair = node >= 0 ? pairAt[node] : -1;
        while (path.length) {
          node = path.pop();
          const frame = model.frame[node];
          const fn = model.functionOf[frame];
          let at = pair < 0 ? top : this._pairNode[pair];
          if (!(hidden && hidden[fn])) {
            const key = at * stride + (this.lines ? frame : fn);
            const known = children.get(key);
            at = known === undefined ? this._node(at, frame) : known;
            if (known === undefined) children.set(key, at);
            else if (this.frame[at] !== frame) this._several.add(at);
          }
          pair = this._pair(pair, frame, at);
          pairAt[node] = pair;
          groupAt[node] = number;
        }
        const end = this._pairNode[pair];
        const owner = this._pairNode[pairAt[model.owner[sample]]];
        this._pairBytes[pair] += weights.bytes[sample];
        this._ends[end] += weights.bytes[sample];
        this.self[owner] += weights.bytes[sample];
        if (weights.counts) this._counts[end] += weights.counts[sample];
        if (weights.before) {
          this._endsBefore[end] += weights.before[sample];
          this.selfBefore[owner] += weights.before[sample];
        }
      }
    });
  }

  _grouped(samples, group) {
    if (!group) return [[null, samples]];
    const groups = new Map();
    for (const sample of samples) {
      const name = this.model.labels[group][this.model.labelsOf[sample]];
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(sample);
    }
    return [...groups];
  }

  _node(parent, frame) {
    this.parent.push(parent);
    this.frame.push(frame);
    this.depth.push(this.depth[parent] + 1);
    for (const column of [this.self, this.selfBefore, this._ends, this._endsBefore, this._counts]) {
      column.push(0);
    }
    return this.parent.length - 1;
  }

  _pair(parent, frame, node) {
    this._pairParent.push(parent);
    this._pairFrame.push(frame);
    this._pairNode.push(node);
    this._pairBytes.push(0);
    return this._pairParent.length - 1;
  }

  _sum() {
    this.total = Float64Array.from(this._ends);
    this.before = Float64Array.from(this._endsBefore);
    this.counts = Float64Array.from(this._counts);
    // How wide a node is: in a comparison what was and what is both need room.
    this.weight = Float64Array.from(this._ends, (bytes, at) => Math.max(bytes, this.before[at]));
    for (let node = this.size - 1; node > ROOT; node -= 1) {
      for (const column of [this.total, this.before, this.counts, this.weight]) {
        column[this.parent[node]] += column[node];
      }
    }
  }

  /** Children of a node stand together in `children`, from `first[node]`, largest first. */
  _arrange() {
    const { size, weight } = this;
    this.first = new Int32Array(size + 1);
    for (let node = 1; node < size; node += 1) this.first[this.parent[node] + 1] += 1;
    for (let node = 0; node < size; node += 1) this.first[node + 1] += this.first[node];
    const next = Int32Array.from(this.first);
    this.children = new Int32Array(Math.max(size - 1, 0));
    for (let node = 1; node < size; node += 1) this.children[next[this.parent[node]]++] = node;
    for (let node = 0; node < size; node += 1) {
      if (this.first[node + 1] - this.first[node] > 1) {
        this.children.subarray(this.first[node], this.first[node + 1])
          .sort((a, b) => weight[b] - weight[a] || a - b);
      }
    }
  }

  childrenOf(node) {
    return this.children.subarray(this.first[node], this.first[node + 1]);
  }

  /** The function of a node, -1 for the root and groups. */
  functionAt(node) {
    return this.frame[node] < 0 ? -1 : this.model.functionOf[this.frame[node]];
  }

  name(node) {
    const fn = this.functionAt(node);
    if (fn >= 0) return this.model.name[fn];
    return node === ROOT ? 'all' : this.groups[-2 - this.frame[node]] || 'not known';
  }

  /** Lines of a node that bytes go through, [line, bytes], most first. */
  linesOf(node) {
    if (this.frame[node] < 0) return [];
    if (!this._several.has(node)) {
      return [[this.model.lineOf[this.frame[node]], this.total[node]]];
    }
    this._linesOfSeveral = this._linesOfSeveral || this._sumLines();
    return this._linesOfSeveral.get(node);
  }

  _sumLines() {
    const total = Float64Array.from(this._pairBytes);
    for (let pair = total.length - 1; pair >= 0; pair -= 1) {
      if (this._pairParent[pair] >= 0) total[this._pairParent[pair]] += total[pair];
    }
    const lines = new Map();
    for (let pair = 0; pair < total.length; pair += 1) {
      const node = this._pairNode[pair];
      const frame = this._pairFrame[pair];
      if (!this._several.has(node) || this.model.functionOf[frame] !== this.functionAt(node)) continue;
      const sums = lines.get(node) || lines.set(node, new Map()).get(node);
      const line = this.model.lineOf[frame];
      sums.set(line, (sums.get(line) || 0) + total[pair]);
    }
    for (const [node, sums] of lines) {
      lines.set(node, [...sums].sort((a, b) => b[1] - a[1] || a[0] - b[0]));
    }
    return lines;
  }

  place(node) {
    const fn = this.functionAt(node);
    return fn < 0 ? '' : this.model.place(fn, this.linesOf(node)[0][0]);
  }

  /** Nodes from the root to `node`. */
  path(node) {
    const path = [];
    for (let at = node; at >= 0; at = this.parent[at]) path.unshift(at);
    return path;
  }

  /** Bytes under `top` of stacks with a matching function, each stack once. */
  matched(top, matches) {
    let bytes = 0;
    let count = 0;
    const open = [top];
    while (open.length) {
      const node = open.pop();
      const fn = this.functionAt(node);
      if (fn >= 0 && matches(fn)) {
        bytes += this.total[node];
        count += 1;
      } else {
        for (const child of this.childrenOf(node)) open.push(child);
      }
    }
    return { bytes, count };
  }
}
