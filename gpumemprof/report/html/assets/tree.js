// Stacks of the chosen samples as the tree that a flame graph draws.

const ROOT = 0;
const MANY_CHILDREN = 32;

/**
 * `options`: `title` of the root; `weights`; `group` (a dimension, or empty) puts a node for each of its values above
 * the stacks; `owners` turns stacks around; `lines` keeps calls from different lines apart; `hidden` (one flag for each
 * function) leaves functions out, whose bytes then end in their callers.
 */
class Tree {
  constructor(model, samples, options) {
    this.model = model;
    this.title = options.title;
    this.lines = Boolean(options.lines);
    this.compared = options.weights.before !== null;
    this.groups = []; // their names
    this._several = new Set(); // nodes of frames with different lines
    const groups = byGroup(model, samples, options.group);
    this._room(groups, options.owners);
    this._node(-1, -1, -1);
    groups.forEach(([name, members], number) => {
      const key = -1 - number;
      const top = name === null ? ROOT : this._node(ROOT, key, -1 - this.groups.push(name));
      if (options.owners) this._addOwners(members, top, options);
      else this._add(members, number, top, options);
    });
    this._sum();
    this._arrange();
  }

  /** Makes room for as many nodes as there can be: one for each pair of a group and a node of the
   * data. Pairs are kept, too: they tell the lines of a node. */
  _room(groups, owners) {
    const { model } = this;
    let pairs = 0;
    const group = new Int32Array(model.parent.length).fill(-1);
    groups.forEach(([, members], number) => {
      for (const sample of members) {
        let node = owners ? model.owner[sample] : model.node[sample];
        for (; node >= 0 && (owners || group[node] !== number); node = model.parent[node]) {
          group[node] = number;
          pairs += 1;
        }
      }
    });
    const nodes = pairs + groups.length + 1;
    this.size = 0;
    this.parent = new Int32Array(nodes);
    this.frame = new Int32Array(nodes); // the first of its frames; -1 the root, -2 - n a group
    this.depth = new Int32Array(nodes);
    this.self = new Float64Array(nodes);
    this.selfBefore = new Float64Array(nodes);
    this.total = new Float64Array(nodes);
    this.before = new Float64Array(nodes);
    this.counts = new Float64Array(nodes);
    this._key = new Float64Array(nodes);
    this._last = new Int32Array(nodes).fill(-1); // child added last, and the one added before it
    this._previous = new Int32Array(nodes).fill(-1);
    this._indexes = new Map(); // of nodes with many children: key → child
    this._pairs = 0;
    this._pairFrame = new Int32Array(pairs);
    this._pairNode = new Int32Array(pairs);
    this._pairParent = new Int32Array(pairs);
    this._pairBytes = new Float64Array(pairs);
    this._pairAt = new Int32Array(model.parent.length);
    this._groupAt = group.fill(-1);
  }

  _add(samples, number, top, { weights, hidden }) {
    const { model, _pairAt: pairAt, _groupAt: groupAt } = this;
    const path = [];
    for (const sample of samples) {
      let node = model.node[sample];
      for (; node >= 0 && groupAt[node] !== number; node = model.parent[node]) path.push(node);
      let pair = node >= 0 ? pairAt[node] : -1;
      let at = pair < 0 ? top : this._pairNode[pair];
      while (path.length) {
        node = path.pop();
        const frame = model.frame[node];
        const fn = model.functionOf[frame];
        if (!(hidden && hidden[fn])) at = this._child(at, this.lines ? frame : fn, frame);
        pair = this._pair(pair, frame, at);
        pairAt[node] = pair;
        groupAt[node] = number;
      }
      this._weigh(sample, weights, pair, this._pairNode[pairAt[model.owner[sample]]]);
    }
  }

  /** The other way round: who owns the memory at the top, beneath it its callers. */
  _addOwners(samples, top, { weights, hidden }) {
    const { model } = this;
    for (const sample of samples) {
      let [at, pair, owner] = [top, -1, -1];
      for (let node = model.owner[sample]; node >= 0; node = model.parent[node]) {
        const frame = model.frame[node];
        const fn = model.functionOf[frame];
        if (hidden && hidden[fn]) continue;
        at = this._child(at, this.lines ? frame : fn, frame);
        pair = this._pair(pair, frame, at);
        if (owner < 0) owner = at;
      }
      this._weigh(sample, weights, pair, owner);
    }
  }

  /** Adds a sample to the node where it ends and to its owner; callers are summed up later. */
  _weigh(sample, weights, pair, owner) {
    const end = this._pairNode[pair];
    this._pairBytes[pair] += weights.bytes[sample];
    this.total[end] += weights.bytes[sample];
    this.self[owner] += weights.bytes[sample];
    if (weights.counts) this.counts[end] += weights.counts[sample];
    if (weights.before) {
      this.before[end] += weights.before[sample];
      this.selfBefore[owner] += weights.before[sample];
    }
  }

  _pair(parent, frame, node) {
    const pair = this._pairs;
    this._pairs += 1;
    this._pairParent[pair] = parent;
    this._pairFrame[pair] = frame;
    this._pairNode[pair] = node;
    return pair;
  }

  _child(parent, key, frame) {
    const index = this._indexes.size ? this._indexes.get(parent) : undefined;
    let child = -1;
    if (index) {
      child = index.get(key) ?? -1;
    } else {
      let steps = 0;
      for (child = this._last[parent]; child >= 0 && this._key[child] !== key; steps += 1) {
        child = this._previous[child];
      }
      if (steps > MANY_CHILDREN) this._index(parent);
    }
    if (child < 0) {
      child = this._node(parent, key, frame);
      if (index) index.set(key, child);
    } else if (this.frame[child] !== frame) {
      this._several.add(child);
    }
    return child;
  }

  _index(parent) {
    const index = new Map();
    for (let at = this._last[parent]; at >= 0; at = this._previous[at]) index.set(this._key[at], at);
    this._indexes.set(parent, index);
  }

  _node(parent, key, frame) {
    const node = this.size;
    this.size += 1;
    this.parent[node] = parent;
    this.frame[node] = frame;
    this._key[node] = key;
    if (parent >= 0) {
      this.depth[node] = this.depth[parent] + 1;
      this._previous[node] = this._last[parent];
      this._last[parent] = node;
    }
    return node;
  }

  _sum() {
    const { parent, total, before, counts } = this;
    // How wide a node is: in a comparison what was and what is both need room.
    const weight = this.compared ? total.map((bytes, at) => Math.max(bytes, before[at])) : total;
    this.weight = weight;
    for (let node = this.size - 1; node > ROOT; node -= 1) {
      const above = parent[node];
      total[above] += total[node];
      counts[above] += counts[node];
      if (this.compared) {
        before[above] += before[node];
        weight[above] += weight[node];
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
    return node === ROOT ? this.title : this.groups[-2 - this.frame[node]] || 'not known';
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
      if (!this.weight[node]) continue;
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

/** [name, samples] for each value of a dimension, or all samples without a name. */
function byGroup(model, samples, dimension) {
  if (!dimension) return [[null, samples]];
  const groups = new Map();
  for (const sample of samples) {
    const name = model.labels[dimension][model.labelsOf[sample]];
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(sample);
  }
  return [...groups];
}
