// Times. The agent tells ns since the epoch as text; they go back to it as they came.

/** ns as text → ms as a number. */
function milliseconds(ns) {
  return Number(ns.slice(0, -6) || 0);
}

/** `14:05:09`, with the day if it is not today's. */
function clock(ms) {
  const date = new Date(ms);
  const two = (value) => String(value).padStart(2, '0');
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

/** `3 min 2 s ago`. */
function ago(ms) {
  const passed = Date.now() - ms;
  return passed < 1000 ? 'now' : `${duration(passed)} ago`;
}

/** The time in the reader's zone; how long ago on hover. */
function timeElement(ms) {
  return el('time', { text: clock(ms), title: ago(ms), datetime: new Date(ms).toISOString() });
}

/** Distances for the marks of a time axis. */
const STEPS = [1, 2, 5, 10, 15, 30].map((seconds) => seconds * 1000)
  .concat([1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60000))
  .concat([1, 2, 3, 6, 12].map((hours) => hours * 3600000))
  .concat([1, 2, 5, 10, 30, 100, 365].map((days) => days * 86400000));

/** Marks between two times, at most `count`: [ms, text] pairs, on round local times. */
function timeMarks(start, end, count) {
  const step = STEPS.find((one) => (end - start) / one <= count) || STEPS[STEPS.length - 1];
  const offset = new Date(start).getTimezoneOffset() * 60000;
  const marks = [];
  for (let at = Math.ceil((start - offset) / step) * step + offset; at <= end; at += step) {
    const text = clock(at);
    const day = text.length > 8 ? text.slice(5, 10) : '';
    const time = step >= 60000 ? text.slice(-8, -3) : text.slice(-8);
    marks.push([at, step >= 86400000 ? day || 'today' : `${day} ${time}`.trim()]);
  }
  return marks;
}
