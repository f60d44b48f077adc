// What colours mean: whose code a frame is, or how much it changed. From the palette of Okabe and
// Ito, which people with any colour vision tell apart; patterns say the same without colour.

const ORIGIN_STYLES = {
  python: { words: 'Python', mark: 'py', rgb: [86, 180, 233], pattern: '' },
  native: { words: 'Native (C, C++, Rust)', mark: 'C', rgb: [240, 188, 80], pattern: '' },
  cuda: { words: 'CUDA', mark: 'cu', rgb: [38, 178, 138], pattern: 'stripes' },
  nccl: { words: 'NCCL', mark: 'nc', rgb: [204, 121, 167], pattern: 'dots' },
  note: { words: 'not known', mark: '?', rgb: [168, 168, 168], pattern: 'cross' },
};
const GREW = [230, 159, 0];
const SHRANK = [0, 114, 178];
const SAME = [190, 190, 190];
const GROUP = [205, 210, 218];
const DARK_INK = '#0b0d10';

function mixed(from, to, share_) {
  return from.map((part, at) => Math.round(part + (to[at] - part) * share_));
}

function css(rgb) {
  return `rgb(${rgb.join(',')})`;
}

/** Relative luminance, 0 (black) to 1, as WCAG defines it. */
function luminance(rgb) {
  const [r, g, b] = rgb.map((part) => {
    const value = part / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever is easier to read on `rgb`. */
function textOn(rgb) {
  return luminance(rgb) > 0.18 ? DARK_INK : '#ffffff';
}

/** A number from 0 to 1 that is always the same for the same text. */
function spread(text) {
  let hash = 2166136261;
  for (let at = 0; at < Math.min(text.length, 64); at += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(at), 16777619);
  }
  return ((hash >>> 0) % 1000) / 1000;
}

/** Neighbours of one origin differ a little in lightness. */
function originColour(model, fn) {
  if (fn < 0) return GROUP;
  const { rgb } = ORIGIN_STYLES[model.data.origins[model.origin[fn]]];
  return mixed(rgb, [255, 255, 255], 0.32 * spread(model.name[fn]));
}

function changeColour(before, after) {
  const most = Math.max(before, after);
  if (!most || before === after) return SAME;
  const share_ = Math.min(Math.abs(after - before) / most, 1);
  return mixed(SAME, after > before ? GREW : SHRANK, Math.sqrt(share_));
}

/** A canvas pattern of an origin, null for none. */
function originPattern(context, pattern) {
  if (!pattern) return null;
  const tile = document.createElement('canvas');
  tile.width = 8;
  tile.height = 8;
  const pen = tile.getContext('2d');
  pen.strokeStyle = pen.fillStyle = 'rgba(0,0,0,.16)';
  pen.lineWidth = 1.2;
  const line = (x1, y1, x2, y2) => {
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
  };
  if (pattern === 'dots') {
    for (const [x, y] of [[2, 2], [6, 6]]) {
      pen.beginPath();
      pen.arc(x, y, 1.1, 0, 7);
      pen.fill();
    }
  } else {
    for (const offset of [-8, 0, 8]) line(offset, 8, offset + 8, 0);
    if (pattern === 'cross') for (const offset of [-8, 0, 8]) line(offset, 0, offset + 8, 8);
  }
  return context.createPattern(tile, 'repeat');
}

function legend(model) {
  const item = (name, words, rgb) => {
    const swatch = el('span', { class: `swatch ${name}`, 'aria-hidden': 'true' });
    swatch.style.backgroundColor = css(rgb);
    return el('li', {}, [swatch, words]);
  };
  const items = model.before
    ? [item('', 'grew', GREW), item('', 'shrank', SHRANK), item('', 'the same', SAME)]
    : model.data.origins
      .filter((name, at) => model.origin.includes(at))
      .map((name) => item(ORIGIN_STYLES[name].pattern, ORIGIN_STYLES[name].words,
        ORIGIN_STYLES[name].rgb));
  return el('ul', { class: 'legend', 'aria-label': 'Colours' }, items);
}
