// What is shown of the one that is selected.

import * as link from './link.js';
import { gate, layers, patch } from './board.js';
import { clean, el, oneLine, paint, plain, short, svg } from './text.js';

/** Texts about a worker, with the key that shows each. */
export const VIEWS = [
	['screen', 'Screen', '1'],
	['log', 'Log', '2'],
	['diff', 'Diff', '3'],
	['session', 'Session', '4'],
	['history', 'History', '5'],
	['explain', 'Explain', '6'],
];

/** Lines of a file above which its changes are folded. */
const FOLD = 400;
/** Lines of a patch that are shown at all. */
const PATCH_MAX = 6000;

const hunk = (part) => {
	const rows = part.lines.map(({ sign, text, old, now }) => {
		const kind = { '+': 'added', '-': 'removed', '\\': 'note' }[sign] ?? 'same';
		return el('tr', { class: kind }, el('td', { class: 'number' }, old ?? ''), el('td', { class: 'number' }, now ?? ''), el('td', { class: 'sign' }, sign === '\\' ? ' ' : sign), el('td', { class: 'code' }, clean(text)));
	});
	const title = el('tr', { class: 'hunk' }, el('td', { colSpan: 3 }), el('td', { class: 'code' }, `line ${part.now}${part.title ? ' \u00b7 ' : ''}${clean(part.title)}`));
	return [title, ...rows];
};

const numbers = (file) => el('span', { class: 'numbers' }, el('span', { class: 'plus' }, `+${file.added}`), ' ', el('span', { class: 'minus' }, `\u2212${file.removed}`));

/** Shows a patch: a summary, then each file with its lines. */
const showPatch = (node, lines, cut) => {
	const { begin, files } = patch(lines.map(plain));
	if (!files.length) return paint(node, begin.length ? begin : ['no changes']);
	const [added, removed] = files.reduce(([plus, minus], file) => [plus + file.added, minus + file.removed], [0, 0]);
	let left = PATCH_MAX;
	const parts = files.map((file, at) => {
		const size = file.hunks.reduce((sum, part) => sum + part.lines.length, 0);
		const body = el('div', { class: 'patch' });
		const fill = () => {
			if (body.childNodes.length) return;
			for (const what of file.what) body.append(el('p', { class: 'what' }, clean(what)));
			const table = el('table', {}, el('colgroup', {}, ['n', 'n', 's', 'c'].map((name) => el('col', { class: name }))), el('tbody', {}));
			table.setAttribute('aria-label', `Changes of ${oneLine(file.name)}`);
			for (const part of file.hunks) if (left > 0) (left -= part.lines.length), table.tBodies[0].append(...hunk(part));
			if (file.hunks.length) body.append(table);
			if (left <= 0) body.append(el('p', { class: 'what' }, 'the rest is too long for this page: use swarm diff'));
		};
		const open = size <= FOLD && at < 50;
		const name = file.from ? `${short(oneLine(file.from))} \u2192 ${short(oneLine(file.name))}` : short(oneLine(file.name), 120);
		const box = el('details', { class: 'file', open, toggle: () => box.open && fill() }, el('summary', {}, el('span', { class: 'path' }, name), ' ', numbers(file)), body);
		if (open) fill();
		return box;
	});
	const words = files.length === 1 ? '1 file' : `${files.length} files`;
	const sum = el('p', { class: 'sum' }, `${words}, `, numbers({ added, removed }), cut ? ' \u00b7 only the beginning' : '');
	node.replaceChildren(...begin.map((text) => el('p', { class: 'what' }, clean(text))), sum, ...parts);
	node.lines = [];
};

/** A graph of what waits for what, from left to right. */
const graph = (nodes) => {
	const columns = layers(nodes);
	const [width, height, gapX, gapY] = [168, 44, 40, 14];
	const rows = Math.max(...columns.map((column) => column.length), 1);
	const size = [columns.length * (width + gapX) - gapX + 8, rows * (height + gapY) - gapY + 8];
	const place = new Map();
	columns.forEach((column, x) => column.forEach((node, y) => place.set(node.id, [4 + x * (width + gapX), 4 + (y + (rows - column.length) / 2) * (height + gapY)])));
	const picture = svg('svg', { viewBox: `0 0 ${size[0]} ${size[1]}`, width: size[0], height: size[1], role: 'group', 'aria-label': 'Graph of the run', class: 'graph' });
	for (const node of nodes)
		for (const before of node.after ?? []) {
			if (!place.has(before)) continue;
			const [[x, y], [toX, toY]] = [place.get(before), place.get(node.id)];
			const [from, to] = [[x + width, y + height / 2], [toX, toY + height / 2]];
			picture.append(svg('path', { d: `M${from} C${from[0] + 20},${from[1]} ${to[0] - 20},${to[1]} ${to}`, class: 'edge' }));
		}
	for (const node of nodes) {
		const [x, y] = place.get(node.id);
		const group = svg('a', { href: node.worker ? `#/${encodeURIComponent(`w/${node.worker}`)}` : location.hash, class: `node k-${node.kind}` });
		group.append(
			svg('rect', { x, y, width, height, rx: 6 }),
			svg('text', { x: x + 10, y: y + 18, class: 'name' }, `${short(oneLine(node.name), 20)} `),
			svg('text', { x: x + 10, y: y + 35, class: 'state' }, short(oneLine(node.state), 24)),
		);
		picture.append(group);
	}
	return el('div', { class: 'scroll' }, picture);
};

/** A run: its graph, and what each workstream says; a flow: its nodes. */
const showNodes = (node, entry) => {
	const rows = entry.nodes.filter((one) => entry.asks || one.at || one.kind !== 'queued').map((one) => el('li', { class: `k-${one.kind}` }, el('strong', {}, oneLine(one.name)), ' ', el('span', { class: 'state' }, oneLine(one.state)), one.at ? `: ${clean(one.at)}` : ''));
	const how = entry.id.startsWith('f/') ? el('p', { class: 'hint' }, `swarm flow requests ${oneLine(entry.name)}`) : graph(entry.nodes);
	node.replaceChildren(how, el('ul', { class: 'nodes' }, rows));
};

/** Shows one row of the board, and what can be done with it. */
export class Detail {
	/** `site`: what is allowed, `run` for acts, `again` to open the stream anew. */
	constructor(node, site) {
		Object.assign(this, { node, site, entry: null, view: 'screen', known: '', asked: null, loading: null });
	}

	/** Parameters of the stream for the window that is shown. */
	get screen() {
		const { entry, view } = this;
		return entry?.window && view === 'screen' && !entry.gone ? { screen: entry.name, generation: entry.generation } : {};
	}

	/** Shows this entry; `null`: none. */
	show(entry) {
		const other = entry?.id !== this.entry?.id || entry?.generation !== this.entry?.generation;
		const windows = JSON.stringify(this.screen);
		this.entry = entry;
		if (other) this.build();
		else if (entry) this.update();
		if (JSON.stringify(this.screen) !== windows) this.site.again();
	}

	build() {
		this.loading?.abort();
		this.known = '';
		this.asked = null;
		const { entry, node } = this;
		if (!entry) {
			node.replaceChildren(el('p', { class: 'empty' }, 'Select a worker to see its screen, log and changes.'));
			return;
		}
		const back = el('a', { href: '#/', class: 'back' }, '\u2190 Fleet');
		this.head = el('div', { class: 'head' });
		this.over = el('p', { class: 'hint', role: 'status' });
		this.request = el('div', { class: 'request', hidden: true }, entry.asks ? this.over : '');
		this.gates = null;
		this.acts = el('div', { class: 'acts', role: 'group' });
		this.acts.setAttribute('aria-label', 'Acts');
		this.body = el('div', { class: 'body' });
		this.say = el('div', {});
		const isWorker = entry.id.startsWith('w/');
		this.tabs = isWorker ? this.makeTabs() : null;
		this.panel = el('div', { id: 'panel', class: 'panel', tabIndex: 0 }, this.body);
		this.panel.setAttribute('role', isWorker ? 'tabpanel' : 'region');
		this.panel.setAttribute('aria-label', isWorker ? 'Text' : 'State');
		node.replaceChildren(...[back, this.head, this.request, this.acts, this.say, this.tabs, this.panel].filter(Boolean));
		this.update();
		this.load();
	}

	makeTabs() {
		const tab = ([name, title, key]) =>
			el('button', { type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': 'panel', title: `${title} (${key})`, click: () => this.choose(name) }, title);
		const tabs = el('div', { class: 'tabs', role: 'tablist', keydown: (event) => this.moveTab(event) }, VIEWS.map(tab));
		tabs.setAttribute('aria-label', 'Views');
		return tabs;
	}

	moveTab(event) {
		const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
		if (!step) return;
		event.preventDefault();
		event.stopPropagation();
		const at = VIEWS.findIndex(([name]) => name === this.view);
		this.choose(VIEWS[(at + step + VIEWS.length) % VIEWS.length][0]);
		this.tabs.querySelector('[aria-selected=true]').focus();
	}

	choose(view) {
		if (!this.entry?.id.startsWith('w/')) return;
		const windows = JSON.stringify(this.screen);
		this.view = view;
		this.update();
		this.load();
		if (JSON.stringify(this.screen) !== windows) this.site.again();
	}

	/** Writes what may have changed, if it has. */
	update() {
		const { entry } = this;
		for (const tab of this.tabs?.children ?? []) {
			const selected = tab.id === `tab-${this.view}`;
			tab.setAttribute('aria-selected', selected);
			tab.tabIndex = selected ? 0 : -1;
		}
		const known = JSON.stringify([entry.state, entry.at, entry.row.rev, entry.gone, entry.nodes, entry.asks, this.site.allow]);
		if (known === this.known) return;
		const before = this.known;
		this.known = known;
		this.writeHead();
		this.writeActs();
		this.writeRequest();
		if (entry.nodes) showNodes(this.body, entry);
		if (entry.asks) this.writeGates();
		// An end changes what its texts say; a window that is shown tells that by itself.
		if (before && !this.screen.screen && this.view !== 'diff') this.load();
	}

	writeHead() {
		const { entry } = this;
		const facts = [entry.place, ...entry.tags.map((tag) => `#${tag}`)].filter(Boolean);
		this.head.replaceChildren(
			el('h2', {}, el('span', { class: `badge k-${entry.kind}` }, oneLine(entry.state)), ' ', el('span', { class: 'title' }, oneLine(entry.name))),
			el('p', { class: 'at' }, clean(entry.at).slice(0, 600)),
			facts.length ? el('p', { class: 'facts' }, facts.map((fact) => el('span', {}, oneLine(fact)))) : '',
		);
		if (entry.gone) this.head.append(el('p', { class: 'alert' }, 'This one is gone, or was started again. Nothing here acts any more.'));
	}

	button(title, key, order, more = {}) {
		return el('button', { type: 'button', title: key ? `${title} (${key})` : title, class: more.class, click: () => this.site.run(this.entry, order, more) }, title);
	}

	writeActs() {
		const { entry, site } = this;
		const parts = [];
		if (site.allow.act && !entry.gone && entry.id.startsWith('i/') && ['conflict', 'rejected'].includes(entry.state)) {
			parts.push(this.button('Try again', 'm', { verb: 'merge-retry', item: entry.row.key }));
		}
		if (site.allow.act && !entry.gone && entry.id.startsWith('w/')) {
			if (entry.row.worktree) parts.push(this.button('Land', 'm', { verb: 'merge-add' }, { ask: `Queue the work of \u201c${oneLine(entry.name)}\u201d to land?`, yes: 'Land it' }));
			if (!entry.running) parts.push(this.button('Start again', 'r', { verb: 'respawn' }));
			if (entry.running || entry.kind === 'queued') parts.push(this.button('Stop\u2026', 'x', { verb: 'kill' }, { class: 'danger', ask: `Stop \u201c${oneLine(entry.name)}\u201d?`, yes: 'Stop it' }));
		}
		this.acts.replaceChildren(...parts);
		const can = site.allow.act && entry.window && !entry.gone;
		if (can && !this.say.firstChild) this.say.replaceChildren(this.makeLine());
		else if (!can) this.say.replaceChildren();
	}

	/** A line to type into the window, and keys. */
	makeLine() {
		const input = el('input', { id: 'line', type: 'text', autocomplete: 'off', placeholder: 'Type a line into its window ( t )' });
		input.setAttribute('aria-label', 'Line to type');
		const send = async (event) => {
			event.preventDefault();
			const text = input.value;
			if (text && (await this.site.run(this.entry, { verb: 'send', text }))) input.value = '';
		};
		const key = (title, name, label) => el('button', { type: 'button', 'aria-label': label ?? null, click: () => this.site.run(this.entry, { verb: 'keys', keys: [name] }, { quiet: true }) }, title);
		const keys = el('div', { class: 'keys', role: 'group' }, key('Esc', 'Escape'), key('\u2191', 'Up', 'Up'), key('\u2193', 'Down', 'Down'), key('1', '1'), key('2', '2'), key('3', '3'), key('y', 'y'), key('n', 'n'), key('Enter', 'Enter'), this.button('Ctrl-C', null, { verb: 'interrupt' }));
		keys.setAttribute('aria-label', 'Keys');
		return el('form', { class: 'say', submit: send }, input, el('button', { type: 'submit' }, 'Send'), keys);
	}

	/** Shows what a flow asks. What is asked by now stays as it is: somebody may be typing. */
	writeGates() {
		const { entry, request: box } = this;
		const asks = entry.gone ? [] : entry.asks;
		const keys = asks.map((one) => JSON.stringify([this.site.allow.answer, one.request, one.node, one.role, one.reason, one.text]));
		const before = this.gates && this.may === this.site.allow.answer;
		this.may = this.site.allow.answer;
		this.gates ??= new Map();
		const over = [...this.gates.keys()].filter((key) => !keys.includes(key));
		const focused = over.some((key) => this.gates.get(key).contains(document.activeElement));
		for (const key of over) {
			this.gates.get(key).remove();
			this.gates.delete(key);
		}
		if (over.length && before) this.over.textContent = 'What was asked is over.';
		keys.forEach((key, at) => {
			if (this.gates.has(key)) return;
			this.gates.set(key, this.makeGate(asks[at], entry));
			box.append(this.gates.get(key));
		});
		box.hidden = !keys.length && !over.length && !this.over.textContent;
		if (focused) this.panel.focus();
	}

	makeGate(one, entry) {
		const how = gate(one);
		const text = el('pre', { class: 'asked', tabIndex: 0 });
		text.setAttribute('aria-label', 'What is asked');
		paint(text, one.text.split('\n'));
		const title = one.node === 'flow' ? one.reason : `${one.node}${one.role === one.node ? '' : ` (${one.role})`}: ${one.reason}`;
		const box = el('div', { class: 'gate', role: 'group' }, el('h3', {}, oneLine(title)), one.text ? text : '');
		box.setAttribute('aria-label', oneLine(title));
		if (!this.site.allow.answer || how.kind === 'long') {
			const why = how.kind === 'long' ? 'It is too long for this page. Read it with \u201cswarm flow requests\u201d, and answer with: ' : 'Answer with: ';
			box.append(el('p', { class: 'hint' }, `${why}${clean(one.command)}`));
			return box;
		}
		const { request, node, role, reason } = one;
		const asked = { flow: entry.row.key, request: request ?? null, node, role, reason, text: one.text };
		const reply = (said) => this.site.run(entry, { verb: 'flow', asked, reply: said });
		box.append({ choice: () => this.choice(how, reply), words: () => this.words(how, reply), text: () => this.text(title, reply) }[how.kind]());
		return box;
	}

	choice({ words: [yes, no], reason: takesReason }, reply) {
		const reason = takesReason ? el('input', { type: 'text', autocomplete: 'off', placeholder: 'What to do instead' }) : null;
		reason?.setAttribute('aria-label', 'What to do instead, if it is declined');
		return el('div', { class: 'answers' },
			el('button', { type: 'button', class: 'primary', click: () => reply('yes') }, yes),
			el('button', { type: 'button', click: () => reply({ no: reason?.value || null }) }, no),
			reason ?? '');
	}

	words({ words }, reply) {
		return el('div', { class: 'answers' }, words.map((word) => el('button', { type: 'button', click: () => reply({ text: word }) }, word)));
	}

	text(title, reply) {
		const input = el('input', { type: 'text', autocomplete: 'off', required: true });
		input.setAttribute('aria-label', `Answer to ${oneLine(title)}`);
		const send = (event) => {
			event.preventDefault();
			reply({ text: input.value });
		};
		return el('form', { class: 'answers', submit: send }, input, el('button', { type: 'submit', class: 'primary' }, 'Answer'));
	}

	/** Shows what is asked. It can be answered once all of it is shown. */
	async writeRequest() {
		const { entry, request: box } = this;
		if (entry.asks) return;
		const asks = entry.gone ? null : entry.answer;
		const id = asks?.request ?? null;
		if (asks?.kind === 'window') {
			this.asked = null;
			box.hidden = false;
			const how = this.site.allow.act ? 'Answer it below: look at its screen, then type or press keys.' : `Answer it in its window: swarm attach ${oneLine(entry.name)}`;
			box.replaceChildren(el('h3', {}, 'It waits for you'), el('p', {}, clean(entry.at)), el('p', { class: 'hint' }, how));
			return;
		}
		if (id === this.asked) return;
		const was = this.asked;
		this.asked = id;
		box.hidden = !id && !was;
		if (!id) {
			box.replaceChildren(el('p', { class: 'hint', role: 'status' }, was ? `Request ${was} is over.` : ''));
			return;
		}
		box.replaceChildren(el('h3', {}, `Request ${id}`), el('p', {}, clean(entry.at)));
		try {
			const said = await link.json('/v1/request', { id });
			if (this.asked === id) this.fillRequest(id, asks, said, was);
		} catch (error) {
			if (this.asked === id) box.append(el('p', { class: 'alert' }, clean(error.message)));
		}
	}

	fillRequest(id, asks, said, was) {
		const box = this.request;
		const text = el('pre', { class: 'asked', tabIndex: 0 });
		text.setAttribute('aria-label', 'What is asked');
		paint(text, said.lines);
		const parts = [el('h3', {}, asks.kind === 'permission' ? 'It asks for a permission' : 'It asks a question')];
		if (was) parts.push(el('p', { class: 'alert', role: 'status' }, `Request ${was} is over; this is another one.`));
		parts.push(text);
		if (!this.site.allow.answer) parts.push(el('p', { class: 'hint' }, `Answer with: swarm ${asks.kind === 'permission' ? 'approve' : 'answer'} ${id}`));
		else parts.push(asks.kind === 'permission' ? this.permission(id) : this.question(id, said.request?.questions ?? []));
		box.replaceChildren(...parts);
	}

	permission(id) {
		const reason = el('input', { type: 'text', autocomplete: 'off', placeholder: 'Reason, for the agent' });
		reason.setAttribute('aria-label', 'Reason for a refusal');
		const entry = this.entry;
		const run = (order) => this.site.run(entry, order);
		return el('div', { class: 'answers' },
			el('button', { type: 'button', class: 'primary', click: () => run({ verb: 'approve', request: id }) }, 'Allow'),
			el('button', { type: 'button', click: () => run({ verb: 'deny', request: id, reason: reason.value || null }) }, 'Deny'),
			reason);
	}

	question(id, questions) {
		const entry = this.entry;
		const asked = questions.length ? questions : [{ text: '', options: [] }];
		const inputs = asked.map((question, at) => {
			const input = el('input', { type: 'text', autocomplete: 'off', required: true });
			input.setAttribute('aria-label', asked.length > 1 ? `Answer to: ${oneLine(question.text)}` : 'Answer');
			const choose = (label) => { input.value = question.several && input.value ? `${input.value}, ${label}` : label; input.focus(); };
			const options = question.options.map((label) => el('button', { type: 'button', click: () => choose(label) }, short(oneLine(label), 60)));
			return [input, el('div', { class: 'question' }, asked.length > 1 ? el('p', {}, `${at + 1}. ${clean(question.text)}`) : '', options.length ? el('div', { class: 'options' }, options) : '', input)];
		});
		const send = (event) => {
			event.preventDefault();
			this.site.run(entry, { verb: 'answer', request: id, answers: inputs.map(([input]) => input.value) });
		};
		return el('form', { class: 'answers', submit: send }, inputs.map(([, part]) => part), el('button', { type: 'submit', class: 'primary' }, 'Answer'));
	}

	/** Takes a window that the stream brings. */
	takeScreen(message) {
		const { entry } = this;
		if (!this.screen.screen || message.name !== entry.name || message.generation !== entry.generation) return;
		if (message.error) this.write('text', [`cannot show the window: ${message.error}`]);
		else this.write('text term', message.lines.length ? message.lines : ['']);
	}

	write(kind, lines) {
		const wanted = `body ${kind}`;
		const { panel } = this;
		const end = panel.scrollHeight - panel.scrollTop - panel.clientHeight < 40;
		if (this.body.className !== wanted) {
			this.body.className = wanted;
			this.body.replaceChildren();
			this.body.lines = [];
		}
		paint(this.body, lines);
		return end;
	}

	/** Asks for the text that is shown. */
	async load() {
		this.loading?.abort();
		const { entry, view } = this;
		const isItem = entry?.id.startsWith('i/');
		if (!entry || entry.gone || this.screen.screen || (!isItem && !entry.id.startsWith('w/'))) return;
		const stop = (this.loading = new AbortController());
		const path = isItem ? '/v1/item' : `/v1/worker/${encodeURIComponent(entry.name)}/${view === 'screen' ? 'log' : view}`;
		try {
			const said = await link.json(path, isItem ? { id: entry.row.key } : { generation: entry.generation }, stop.signal);
			if (this.loading !== stop) return;
			if (view === 'diff' && !isItem && !said.refused) {
				this.body.className = 'body';
				showPatch(this.body, said.lines, said.cut);
				return;
			}
			const isLog = !isItem && ['screen', 'log'].includes(view);
			const first = this.body.className !== `body text${isLog ? ' term' : ''}`;
			const end = this.write(`text${isLog ? ' term' : ''}`, said.lines.length ? said.lines : ['nothing yet']);
			if (isLog && (first || end)) this.panel.scrollTop = this.panel.scrollHeight;
		} catch (error) {
			if (this.loading === stop && error.name !== 'AbortError') this.write('text', [error.message]);
		}
	}
}
