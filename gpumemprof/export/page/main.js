// The page: asks the agent, draws what the address says, and asks again while it is looked at.

const REFRESH = 15000;

/** The agent's answer to a question. Throws an Error with a sentence for the reader. */
async function ask(path) {
  let response;
  try {
    response = await fetch(path);
  } catch {
    throw new Error('The agent does not answer. Has kubectl port-forward ended?');
  }
  const value = await response.json().catch(() => null);
  if (!response.ok) throw new Error((value && value.error) || `The agent answers ${response.status}.`);
  return value;
}

/** Stands where the agent's answer will. */
function loading() {
  return el('p', { class: 'quiet waiting', text: 'loading…' });
}

class App {
  constructor() {
    this.main = document.querySelector('main');
    this.problems = document.querySelector('.problems');
    this.node = el('span', { class: 'quiet' });
    this.fresh = el('span', { class: 'quiet small' });
    document.querySelector('.bar-top').replaceChildren(
      el('a', { class: 'brand', href: '#/', text: 'gpumemprof' }),
      this.node,
      this.fresh,
      themeButton(),
    );
    this.view = null;
    window.addEventListener('hashchange', () => this.route());
    document.addEventListener('visibilitychange', () => this.refresh());
    setInterval(() => this.refresh(), REFRESH);
    this.route();
  }

  /** `#/` is the list, `#/id` a container. Other marks are places on the page. */
  route() {
    const { hash } = window.location;
    if (hash && !hash.startsWith('#/')) {
      window.history.replaceState(null, '', this.address);
      return;
    }
    this.address = hash || '#/';
    const id = this.address.slice(2);
    this.view = /^[0-9a-f]{32}$/.test(id) ? new Details(id) : new Workloads();
    this.main.replaceChildren(this.view.element);
    window.scrollTo(0, 0);
    this.refresh();
  }

  async refresh() {
    if (document.hidden) return;
    const { view } = this;
    try {
      const agent = await ask('/api/agent');
      this.tell(agent.problems);
      this.node.textContent = `node ${agent.node}`;
      this.node.title = agent.about.map(([name, text]) => `${name} ${text}`).join('\n');
      this.fresh.textContent = stored(agent);
      document.title = `gpumemprof: ${agent.node}`;
      await view.refresh(agent);
    } catch (error) {
      this.tell([error.message]);
      for (const one of this.main.querySelectorAll('.waiting')) one.remove(); // it may not come
    }
  }

  tell(problems) {
    this.problems.replaceChildren(problems.length ? el('div', { class: 'banner bad' }, [
      el('ul', {}, problems.map((text) => el('li', { text }))),
    ]) : '');
  }
}

function stored({ store, pushed, push_fails: fails }) {
  const parts = [];
  if (pushed) parts.push(fails ? 'profiles wait to be pushed' : 'profiles are pushed');
  if (store) parts.push(`${number(store.profiles, 'profile')} stored, ${size(store.bytes)} of ${size(store.max_bytes)}`);
  return parts.join(' · ') || 'nothing is stored: only what is held now is shown';
}

new App();
