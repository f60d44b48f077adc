// The table of functions.

const FIRST_ROWS = 40;
const MORE_ROWS = 500;

const PROFILE_COLUMNS = [
  ['self', 'Self', 'its own, with native code beneath it', 2],
  ['total', 'Total', 'also what it called', 2],
  ['name', 'Function', '', 1],
  ['place', 'File:line', 'the line through which most bytes go', 1],
];
const DIFF_COLUMNS = [
  ['change', 'Change of self', 'its own, with native code beneath it', 2],
  ['before', 'Before', 'self before', 1],
  ['after', 'After', 'self after', 1],
  ['totalChange', 'Change of total', 'also of what it called', 1],
  ['name', 'Function', '', 1],
  ['place', 'File:line', 'the line through which most bytes go', 1],
];

class FunctionTable {
  /** `onPick(fn)`: a function was chosen, or null when it was chosen again. */
  constructor(model, onPick) {
    this.model = model;
    this.onPick = onPick;
    this.columns = model.before ? DIFF_COLUMNS : PROFILE_COLUMNS;
    this.column = model.before ? 'change' : 'self';
    this.descending = true;
    this.filter = '';
    this.picked = null;
    this.limit = FIRST_ROWS;
    this.headings = el('tr');
    this.body = el('tbody');
    this.more = el('button', {
      type: 'button',
      class: 'more',
      on: {
        click: () => {
          this.limit += MORE_ROWS;
          this._fill();
        },
      },
    });
    this.what = el('span', { class: 'quiet what' });
    this.count = el('span', { class: 'quiet', role: 'status' });
    this.filterBox = el('input', {
      type: 'search',
      placeholder: 'Filter functions and files',
      'aria-label': 'Filter functions and files',
      on: {
        input: () => {
          this.filter = this.filterBox.value.trim().toLowerCase();
          this.limit = FIRST_ROWS;
          this._fill();
        },
      },
    });
    this.element = section('Functions', 'functions', [
      el('div', { class: 'scroll' }, [
        el('table', { class: 'functions' }, [el('thead', {}, [this.headings]), this.body]),
      ]),
      this.more,
    ], [this.what, this.count, this.filterBox]);
  }

  /** Shows other rows (`functionRows`); `whole`: bytes that they are shares of, `name`: of what. */
  show(rows, whole, name) {
    this.rows = rows.filter((row) => (row.total || row.totalBefore) && !row.internal);
    this.whole = whole;
    this.what.textContent = name;
    this.largest = highestOf(this.rows.map((row) => row.self), 1);
    this._fill();
  }

  pick(fn) {
    this.picked = fn;
    for (const row of this.body.rows) this._markRow(row);
  }

  _markRow(row) {
    const picked = this.picked !== null && row.dataset.function === String(this.picked);
    row.classList.toggle('picked', picked);
    row.querySelector('button').setAttribute('aria-pressed', String(picked));
  }

  _fill() {
    this.headings.replaceChildren(...this.columns.map((column) => this._heading(column)));
    const found = this.rows.filter((row) => this.model.searched[row.fn].includes(this.filter));
    const sorted = sortRows(this.model, found, this.column, this.descending);
    this.body.replaceChildren(...sorted.slice(0, this.limit).map((row) => this._row(row)));
    const left = sorted.length - this.limit;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show ${grouped(Math.min(left, MORE_ROWS))} of ${number(left, 'more function')}`;
    this.count.textContent = found.length === this.rows.length
      ? number(found.length, 'function') : `${grouped(found.length)} of ${number(this.rows.length, 'function')}`;
  }

  _heading([name, text, title, span]) {
    const sorted = name === this.column;
    const button = el('button', {
      type: 'button',
      title: title || null,
      text: `${text}${sorted ? (this.descending ? ' ▾' : ' ▴') : ''}`,
      data: { sort: name },
      on: {
        click: () => {
          this.descending = sorted ? !this.descending : name !== 'name' && name !== 'place';
          this.column = name;
          this._fill();
          this.headings.querySelector(`[data-sort=${name}]`).focus();
        },
      },
    });
    return el('th', {
      scope: 'col',
      colspan: String(span),
      class: name === 'name' || name === 'place' ? '' : 'number',
      'aria-sort': sorted ? (this.descending ? 'descending' : 'ascending') : 'none',
    }, [button]);
  }

  _row(row) {
    const { model } = this;
    const origin = ORIGIN_STYLES[model.data.origins[model.origin[row.fn]]];
    const pattern = model.before ? '' : origin.pattern;
    const swatch = el('span', { class: `swatch ${pattern}`, title: origin.words });
    swatch.style.backgroundColor = css(
      model.before ? changeColour(row.totalBefore, row.total) : origin.rgb);
    const element = el('tr', { data: { function: row.fn } }, [
      ...(model.before ? this._diffCells(row) : this._cells(row)),
      el('td', {}, [el('div', { class: 'name' }, [
        swatch,
        el('button', {
          type: 'button',
          text: model.name[row.fn],
          title: model.name[row.fn],
          on: { click: () => this.onPick(this.picked === row.fn ? null : row.fn) },
        }),
      ])]),
      el('td', {
        class: 'place',
        text: model.place(row.fn, row.line),
        title: model.module[row.fn] || model.place(row.fn, row.line),
      }),
    ]);
    this._markRow(element);
    return element;
  }

  _cells(row) {
    const bar = el('span', { class: 'bar' });
    bar.style.width = `${(100 * row.self) / this.largest}%`;
    const cell = (bytes, extra) => el('td', { class: 'number', title: exact(bytes) }, [
      bytes ? size(bytes) : '-', ...extra,
    ]);
    const percent = (bytes) =>
      el('td', { class: 'number quiet', text: bytes ? share(bytes, this.whole) : '' });
    return [cell(row.self, [bar]), percent(row.self), cell(row.total, []), percent(row.total)];
  }

  _diffCells(row) {
    const cell = (text, title, name = '') => el('td', { class: `number ${name}`, text, title });
    const delta = row.self - row.selfBefore;
    const total = row.total - row.totalBefore;
    const direction = delta > 0 ? 'grew' : delta < 0 ? 'shrank' : '';
    return [
      cell(delta ? change(delta) : '-', exact(delta), direction),
      cell(delta ? relative(row.selfBefore, row.self) : '', '', 'quiet'),
      cell(row.selfBefore ? size(row.selfBefore) : '-', exact(row.selfBefore)),
      cell(row.self ? size(row.self) : '-', exact(row.self)),
      cell(total ? change(total) : '-', exact(total)),
    ];
  }
}
