// The bar with which one chooses what is shown.

/** In use, peak, allocated: radio buttons that tell their bytes. */
class TypeSwitch {
  constructor(selected, onChange) {
    const name = freshId('type');
    this.sizes = {};
    this.element = el('div', { class: 'types', role: 'radiogroup', 'aria-label': 'What to count' },
      SHOWN_TYPES.map((shown) => {
        this.sizes[shown.type] = el('span', { class: 'bytes' });
        const input = el('input', {
          type: 'radio',
          name,
          value: shown.type,
          checked: shown.type === selected,
          on: { change: () => onChange(shown.type) },
        });
        return el('label', { title: shown.title }, [input, el('span', { class: 'type' }, [
          el('span', { text: shown.name }), this.sizes[shown.type],
        ])]);
      }));
  }

  /** `values`: type → [bytes, bytes before or null]. */
  show(values) {
    for (const [type, [bytes, before]] of Object.entries(values)) {
      const element = this.sizes[type];
      element.textContent = before === null ? size(bytes)
        : `${size(before)} → ${size(bytes)} (${change(bytes - before)})`;
      element.title = before === null ? exact(bytes) : `${grouped(before)} → ${exact(bytes)}`;
    }
  }
}

/** Selects for kind, process, pod and device; those with nothing to choose are left out. */
function filterControls(model, filters, onChange) {
  const set = (name) => (value) => {
    filters[name] = value;
    onChange();
  };
  const kinds = model.valuesOf('kind');
  const words = (kind) => `${kind[0].toUpperCase()}${kind.slice(1).replaceAll('_', ' ')} memory`;
  const choices = [[GPU, 'GPU memory'], ...kinds.map((kind) =>
    [kind, kind === model.data.pinned ? 'Pinned host memory' : words(kind)])];
  const controls = [];
  if (kinds.length > 1 || kinds[0] === model.data.pinned) {
    controls.push(choice('Kind', choices, filters.kind, set('kind')));
  }
  for (const [name, label, all] of DIMENSIONS) {
    const values = model.valuesOf(name);
    if (values.length > 1 && !(model.before && name === 'process')) {
      controls.push(choice(label, [['', all], ...values.map((value) => [value, value])],
        filters[name], set(name)));
    }
  }
  return controls;
}

/** Dark, light, or as the system has it. */
function themeButton() {
  const button = el('button', {
    type: 'button',
    class: 'theme',
    text: '◐',
    title: 'Light or dark',
    'aria-label': 'Light or dark',
    on: {
      click: () => {
        const root = document.documentElement;
        const dark = root.dataset.theme
          ? root.dataset.theme === 'dark' : window.matchMedia('(prefers-color-scheme: dark)').matches;
        root.dataset.theme = dark ? 'light' : 'dark';
      },
    },
  });
  return button;
}
