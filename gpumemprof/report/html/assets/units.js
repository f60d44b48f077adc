// Numbers as people read them, equal to the terminal's (report/units.py).

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

/** Rounded to `decimals` places; of two equally near ones the even one, as Python does. */
function rounded(value, decimals) {
  const scale = 10 ** decimals;
  const low = Math.floor(value * scale);
  const tie = (low + 0.5) / scale === value;
  return tie ? (low + (low % 2)) / scale : Number(value.toFixed(decimals));
}

/** Bytes with three significant digits: `512 B`, `1.50 GiB`. */
function size(count) {
  if (count < 0) return `-${size(-count)}`;
  let unit = 0;
  let scaled = count;
  while (rounded(scaled, 0) >= 1024 && unit < UNITS.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  if (unit === 0) return `${count} B`;
  const decimals = rounded(scaled, 2) < 10 ? 2 : rounded(scaled, 1) < 100 ? 1 : 0;
  return `${rounded(scaled, decimals).toFixed(decimals)} ${UNITS[unit]}`;
}

/** The highest of values, and of `least`. Not by Math.max(...values): a call takes no more than some
 * 100,000 arguments. */
function highestOf(values, least) {
  return values.reduce((a, b) => (b > a ? b : a), least);
}

/** `+1.50 GiB`, `-512 B`, `0 B`. */
function change(count) {
  return count > 0 ? `+${size(count)}` : size(count);
}

function grouped(count) {
  return count.toLocaleString('en-US');
}

/** `1 call`, `1,542 calls`, `2 processes`. */
function number(count, noun) {
  const plural = noun.endsWith('s') ? `${noun}es` : `${noun}s`;
  return `${grouped(count)} ${count === 1 ? noun : plural}`;
}

/** Bytes to the last one. */
function exact(count) {
  return number(count, 'byte');
}

/** `20.6%`; nothing is left for a share of nothing. */
function share(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(1)}%` : '-';
}

/** Change in percent of what was before. */
function relative(before, after) {
  if (before === after) return '0.0%';
  if (!before) return 'new';
  if (!after) return 'gone';
  const percent = (100 * (after - before)) / before;
  return `${percent > 0 ? '+' : ''}${percent.toFixed(1)}%`;
}

/** Milliseconds: `85 ms`, `8.4 s`, `1 min 23 s`, `2 h 5 min`. */
function duration(milliseconds) {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = Math.floor(milliseconds / 1000);
  if (seconds < 60) return `${(Math.floor(milliseconds / 100) / 10).toFixed(1)} s`;
  for (const [large, small, step, unit] of [
    ['d', 'h', 86400, 3600], ['h', 'min', 3600, 60], ['min', 's', 60, 1],
  ]) {
    if (seconds >= step) {
      return `${Math.floor(seconds / step)} ${large} ${Math.floor((seconds % step) / unit)} ${small}`;
    }
  }
  return '';
}
