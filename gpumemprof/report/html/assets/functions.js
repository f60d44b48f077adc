// The table of functions: total and self as the terminal counts them (report/functions.py).

/**
 * A row for each function on a stack of `samples`: `fn`, `total`, `self`, `line` (the one through
 * which most bytes go), `internal` (left out of tables for people), and in a comparison
 * `totalBefore` and `selfBefore`.
 */
function functionRows(model, samples, weights) {
  const { bytes, before, ties } = weights;
  const count = model.name.length;
  const total = new Float64Array(count);
  const self = new Float64Array(count);
  const totalBefore = new Float64Array(count);
  const selfBefore = new Float64Array(count);
  const owns = new Uint8Array(count);
  const outsidePython = new Uint8Array(count);
  const frameCount = model.functionOf.length;
  const byFrame = [0, 1, 2].map(() => new Float64Array(frameCount));
  const [ofFrame, firstTie, secondTie] = byFrame;
  const frames = new Uint8Array(frameCount);
  const seen = new Int32Array(count).fill(-1);
  for (const sample of samples) {
    const owner = model.functionOf[model.frame[model.owner[sample]]];
    self[owner] += bytes[sample];
    if (before) selfBefore[owner] += before[sample];
    owns[owner] = 1;
    const python = model.origin[owner] === 0; // it owns wherever it is on the stack
    for (let node = model.node[sample]; node >= 0; node = model.parent[node]) {
      const frame = model.frame[node];
      const fn = model.functionOf[frame];
      if (seen[fn] === sample) continue; // recursion counts once, at the innermost call
      seen[fn] = sample;
      total[fn] += bytes[sample];
      if (before) totalBefore[fn] += before[sample];
      if (!python) outsidePython[fn] = 1;
      frames[frame] = 1;
      ofFrame[frame] += bytes[sample];
      firstTie[frame] += ties[0][sample];
      secondTie[frame] += ties[1][sample];
    }
  }
  const best = new Map();
  const tieSums = [new Float64Array(count), new Float64Array(count)];
  for (let frame = 0; frame < frameCount; frame += 1) {
    if (!frames[frame]) continue;
    const fn = model.functionOf[frame];
    tieSums[0][fn] += firstTie[frame];
    tieSums[1][fn] += secondTie[frame];
    if (!best.has(fn) || heavier(model, byFrame, frame, best.get(fn))) best.set(fn, frame);
  }
  return [...best].map(([fn, frame]) => ({
    fn,
    line: model.lineOf[frame],
    total: total[fn],
    self: self[fn],
    totalBefore: totalBefore[fn],
    selfBefore: selfBefore[fn],
    ties: tieSums.map((sums) => sums[fn]),
    internal: model.origin[fn] !== 0 && model.origin[fn] !== 4 && !owns[fn]
      && (!outsidePython[fn] || model.cuda[fn] === 1),
  }));
}

function heavier(model, byFrame, one, other) {
  for (const sums of byFrame) {
    if (sums[one] !== sums[other]) return sums[one] > sums[other];
  }
  return model.lineOf[one] < model.lineOf[other];
}

function compareTexts(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** Functions sorted by a column, in either direction; equals by the other numbers, then names. */
function sortRows(model, rows, column, descending) {
  const keys = {
    self: (row) => [row.self, row.total, ...row.ties],
    total: (row) => [row.total, row.self, ...row.ties],
    before: (row) => [row.selfBefore, row.totalBefore],
    after: (row) => [row.self, row.total],
    change: (row) => [Math.abs(row.self - row.selfBefore), Math.abs(row.total - row.totalBefore)],
    totalChange: (row) =>
      [Math.abs(row.total - row.totalBefore), Math.abs(row.self - row.selfBefore)],
    name: (row) => [model.name[row.fn]],
    place: (row) => [model.file[row.fn] || model.place(row.fn, 0), row.line],
  }[column];
  const sign = descending ? -1 : 1;
  const compare = (a, b) => {
    const [left, right] = [keys(a), keys(b)];
    for (let at = 0; at < left.length; at += 1) {
      if (left[at] !== right[at]) return (left[at] < right[at] ? -1 : 1) * sign;
    }
    return compareTexts(model.name[a.fn], model.name[b.fn])
      || compareTexts(model.file[a.fn], model.file[b.fn])
      || compareTexts(model.module[a.fn], model.module[b.fn]);
  };
  return [...rows].sort(compare);
}
