// The first page: who holds GPU memory on this node.

const ENDED_SHOWN = 20;

class Workloads {
  constructor() {
    this.filter = '';
    this.search = el('input', {
      type: 'search',
      placeholder: 'Filter by name',
      'aria-label': 'Filter by namespace, workload, pod or container',
      on: {
        input: () => {
          this.filter = this.search.value.trim().toLowerCase();
          this.draw();
        },
      },
    });
    this.running = el('div', { class: 'scroll' }, [loading()]);
    this.ended = el('div');
    this.total = el('span', { class: 'quiet' });
    this.rows = null; // until the agent has answered
    this.cluster = true;
    this.allEnded = false;
    this.element = el('div', {}, [
      section('GPU memory on this node', 'workloads', [this.running], [this.total, this.search]),
      this.ended,
    ]);
  }

  async refresh({ cluster }) {
    this.cluster = cluster;
    this.rows = await ask('/api/workloads');
    this.draw();
  }

  draw() {
    if (!this.rows) return;
    const named = (row) => [row.namespace, row.workload, row.pod, row.container].join('\n')
      .toLowerCase().includes(this.filter);
    const shown = this.rows.filter(named);
    const running = shown.filter((row) => row.running);
    const ended = shown.filter((row) => !row.running);
    const held = this.rows.reduce((sum, row) => sum + row.in_use, 0);
    const holders = this.rows.filter((row) => row.in_use);
    this.total.replaceChildren(sizeElement(held), ` in use by ${number(holders.length, kindOf(holders, this.cluster))}`);
    this.running.replaceChildren(running.length ? workloadTable(running) : nothingYet(this.filter, this.cluster));
    this.ended.replaceChildren(ended.length ? this._ended(ended) : '');
  }

  _ended(rows) {
    const some = this.allEnded ? rows : rows.slice(0, ENDED_SHOWN);
    return section('Ended', 'ended', [
      el('div', { class: 'scroll' }, [workloadTable(some)]),
      some.length < rows.length ? el('button', {
        type: 'button',
        class: 'more',
        text: `show all ${grouped(rows.length)}`,
        on: {
          click: () => {
            this.allEnded = true;
            this.draw();
          },
        },
      }) : null,
    ]);
  }
}

/** What these rows are: programs are those outside of pods. */
function kindOf(rows, cluster) {
  if (rows.length ? rows.every((row) => !row.namespace) : !cluster) return 'program';
  return rows.every((row) => row.namespace) ? 'container' : 'workload';
}

function nothingYet(filter, cluster) {
  if (filter) return el('p', { class: 'quiet', text: 'No name matches.' });
  if (!cluster) {
    return el('div', { class: 'empty' }, [el('p', { text: 'No program holds GPU memory.' })]);
  }
  return el('div', { class: 'empty' }, [
    el('p', { text: 'No container that is switched on holds GPU memory.' }),
    el('p', { class: 'quiet' }, [
      'A namespace is switched on in the ConfigMap of the release, within seconds and without a restart:',
    ]),
    el('code', { text: 'kubectl patch configmap gpumemprof-profiling -n RELEASE_NAMESPACE --type merge -p \'{"data":{"NAMESPACE":"on"}}\'' }),
  ]);
}

/** `namespace / workload`, and in small its pod and container. */
function nameCell(row) {
  const title = el('a', { class: 'workload', href: `#/${row.id}` }, [
    row.namespace ? el('span', { class: 'quiet', text: `${row.namespace} / ` }) : null,
    el('bdi', { text: row.workload || row.pod || '[no name]' }),
  ]);
  const small = [row.pod, row.container].filter((part) => part && part !== row.workload);
  return el('td', { class: 'who' }, [
    title,
    el('div', { class: 'quiet small' }, [el('bdi', {
      text: small.length ? small.join(' / ') : row.namespace ? '' : 'process of no pod',
    })]),
  ]);
}

function workloadTable(rows) {
  const most = Math.max(1, ...rows.map((row) => row.in_use || row.held_last));
  const running = rows[0].running;
  const pinned = rows.some((row) => row.pinned);
  const gpus = rows.some((row) => row.gpus.length);
  const heads = ['Workload', running ? 'In use' : 'Held at last', 'Peak', 'Last hour', 'Failed'];
  const head = (text, kind = '') => el('th', {
    scope: 'col',
    text,
    class: text === 'Workload' || text === 'Last hour' ? null : `number ${kind}`,
  });
  return el('table', { class: 'workloads' }, [
    el('thead', {}, [el('tr', {}, [
      ...heads.map((text) => head(text)),
      pinned ? head('Pinned host') : null,
      gpus ? head('GPU', 'lesser') : null,
      head(running ? 'Since' : 'Until', 'lesser'),
    ])]),
    el('tbody', {}, rows.map((row) => {
      const held = row.running ? row.in_use : row.held_last;
      const bar = el('span', { class: 'bar' });
      bar.style.width = `calc((100% - 20px) * ${(held / most).toFixed(4)})`;
      const when = row.running ? row.since_ns : row.last_ns;
      return el('tr', {
        on: { click: (event) => event.target.closest('a') || window.getSelection().toString()
          || (window.location.hash = `#/${row.id}`) },
      }, [
        nameCell(row),
        el('td', { class: 'number held' }, [sizeElement(held), bar]),
        el('td', { class: 'number' }, [sizeElement(row.peak)]),
        el('td', {}, row.trend ? [
          el('div', { class: 'trend' }, [sparkline(row.trend), changeElement(row.trend)]),
        ] : [el('span', { class: 'quiet', text: '-' })]),
        el('td', { class: 'number' }, [row.failures
          ? el('a', {
            class: 'badge bad', href: `#/${row.id}`, text: grouped(row.failures), title: 'failed allocations',
          })
          : el('span', { class: 'quiet', text: '-' })]),
        pinned ? el('td', { class: 'number' }, [row.pinned ? sizeElement(row.pinned) : '-']) : null,
        gpus ? el('td', { class: 'number lesser', text: row.gpus.join(', ') || '-' }) : null,
        el('td', { class: 'number lesser' }, [when ? timeElement(milliseconds(when)) : '-']),
      ]);
    })),
  ]);
}
