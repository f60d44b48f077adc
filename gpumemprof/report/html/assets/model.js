// The data of a page (report/html/__init__.py tells their shape), ready for sums.

const SHOWN_TYPES = [
  {
    type: 'inuse_space',
    count: 'inuse_objects',
    name: 'In use',
    words: 'in use',
    title: 'not freed when the recording ended',
  },
  {
    type: 'peak_space',
    count: null,
    name: 'Peak',
    words: 'in use at the peak',
    title: 'at the moment when its process held most',
  },
  {
    type: 'alloc_space',
    count: 'alloc_objects',
    name: 'Allocated',
    words: 'allocated',
    title: 'while recording, freed or not',
  },
];

/** Dimensions that one can filter and group by: name of the column of labels → words. */
const DIMENSIONS = [
  ['process', 'Process', 'All processes'],
  ['pod', 'Pod', 'All pods'],
  ['device', 'Device', 'All devices'],
];

const GPU = 'gpu';

class Model {
  constructor(data) {
    if (!data || data.version !== 1) throw new Error('this is no data of this viewer');
    this.data = data;
    const text = (numbers) => numbers.map((number) => data.strings[number]);
    const { functions, frames, nodes, labels, samples } = data;
    this.name = text(functions.name);
    this.file = text(functions.file);
    this.module = text(functions.module);
    this.origin = Uint8Array.from(functions.origin);
    this.cuda = Uint8Array.from(functions.cuda);
    this.functionOf = Int32Array.from(frames.function);
    this.lineOf = Float64Array.from(frames.line);
    this.parent = Int32Array.from(nodes.up, (up, at) => (up ? at - up : -1));
    this.frame = Int32Array.from(nodes.frame);
    this.labels = {};
    for (const [name, numbers] of Object.entries(labels)) this.labels[name] = text(numbers);
    this.labels.each = this.labels.process.map((process, row) =>
      [this.labels.pod[row], process].filter(Boolean).join(' '));
    this.node = Int32Array.from(samples.node);
    this.owner = Int32Array.from(samples.owner);
    this.labelsOf = Int32Array.from(samples.labels);
    this.values = {};
    this.before = data.mode === 'diff' ? {} : null;
    data.types.forEach((type, at) => {
      this.values[type] = Float64Array.from(samples.values[at]);
      if (this.before) this.before[type] = Float64Array.from(data.before[at]);
    });
    this.searched = this.name.map((name, at) =>
      `${name}\n${this.file[at]}\n${this.module[at]}`.toLowerCase());
  }

  get size() {
    return this.node.length;
  }

  /** Different values of a dimension, those with most bytes at the peak first. */
  valuesOf(dimension) {
    const sums = new Map();
    const column = this.labels[dimension];
    for (let sample = 0; sample < this.size; sample += 1) {
      const value = column[this.labelsOf[sample]];
      sums.set(value, (sums.get(value) || 0) + this.values.peak_space[sample]);
    }
    return [...sums].filter(([value]) => value !== '').sort((a, b) => b[1] - a[1]).map(([v]) => v);
  }

  hasSeveral(dimension) {
    return this.valuesOf(dimension).length > 1;
  }

  /** Samples that pass: `kind` is one kind or GPU for all but pinned host memory; other
   * dimensions are a value or empty for all. */
  select(filters) {
    const passes = this.passing(filters);
    const chosen = [];
    for (let sample = 0; sample < this.size; sample += 1) {
      if (passes[this.labelsOf[sample]]) chosen.push(sample);
    }
    return chosen;
  }

  /** For each row of labels whether it passes. */
  passing(filters) {
    return this.labels.kind.map((kind, row) =>
      (filters.kind === GPU ? kind !== this.data.pinned : kind === filters.kind)
      && DIMENSIONS.every(([name]) => !filters[name] || this.labels[name][row] === filters[name]));
  }

  sum(samples, column) {
    let sum = 0;
    for (const sample of samples) sum += column[sample];
    return sum;
  }

  /** File and line of a function, or the module of native code, as the terminal shows them. */
  place(fn, line) {
    if (this.file[fn]) return line > 0 ? `${this.file[fn]}:${line}` : this.file[fn];
    return this.module[fn].slice(this.module[fn].lastIndexOf('/') + 1);
  }
}

/** What to add up of a model's samples: bytes, numbers of allocations, and the bytes before. */
class Weights {
  constructor(model, type) {
    const shown = SHOWN_TYPES.find((one) => one.type === type);
    this.shown = shown;
    this.bytes = model.values[type];
    this.counts = shown.count ? model.values[shown.count] : null;
    this.before = model.before ? model.before[type] : null;
    this.ties = [model.values.peak_space, model.values.alloc_space];
  }

  /** Other bytes of the same samples, such as those live at a failure. */
  static of(model, bytes) {
    const weights = new Weights(model, 'inuse_space');
    return Object.assign(weights, { bytes, counts: null, before: null });
  }
}
