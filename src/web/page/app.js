// The page: the list, keys, dialogs, and what connects the parts.

import { Board, CLASSES, counts, entries, matches, sorted } from './board.js';
import { Detail, VIEWS } from './detail.js';
import * as link from './link.js';
import { age, clean, el, oneLine } from './text.js';

const $ = (id) => document.getElementById(id);
const SIGNS = new Map(CLASSES.map(([name, sign, title]) => [name, { sign, title }]));
/** Time after a key or a movement for which nothing changes its place in the list. */
const CALM = 1500;

const board = new Board();
const site = { allow: { act: false, answer: false }, run, again: () => stream?.open() };
const detail = new Detail($('detail'), site);
const rows = new Map();
const heads = new Map();
let all = [], shown = [], touched = 0, drawing = 0, told = '';
let stream = null;

const selected = () => {
	const hash = location.hash.slice(2);
	try { return decodeURIComponent(hash); } catch { return ''; }
};
const address = (id) => `#/${encodeURIComponent(id)}`;

const makeRow = (entry) => {
	const part = (name) => el('span', { class: name });
	const row = { sign: part('mark'), name: part('name'), state: part('state'), age: part('age'), at: part('at'), since: null, text: '' };
	row.link = el('a', { class: 'row', href: address(entry.id), tabIndex: -1 }, row.sign, row.name, row.state, row.age, row.at);
	row.node = el('li', {}, row.link);
	return row;
};

const fill = (row, entry, now) => {
	const since = age(entry.since, now);
	const text = JSON.stringify([entry.kind, entry.name, entry.state, entry.at, since]);
	if (text === row.text) return;
	row.text = text;
	row.link.className = `row k-${entry.kind}`;
	row.sign.textContent = SIGNS.get(entry.kind).sign;
	row.sign.setAttribute('aria-hidden', 'true');
	row.name.textContent = ({ i: 'merge ', r: 'run ', f: 'flow ' }[entry.id[0]] ?? '') + oneLine(entry.name).slice(0, 200);
	row.state.textContent = oneLine(entry.state).slice(0, 40);
	row.age.textContent = since;
	row.at.textContent = oneLine(entry.at).slice(0, 300);
};

const heading = (kind) => {
	if (!heads.has(kind)) heads.set(kind, el('li', { class: 'group' }, el('h2', {}, SIGNS.get(kind).title)));
	return heads.get(kind);
};

const list = el('ul', {});

/** Writes the list. While somebody moves, nothing changes its place. */
const draw = () => {
	drawing = 0;
	const now = Date.now();
	all = entries(board);
	const filter = $('filter').value;
	const present = new Map(all.map((entry) => [entry.id, entry]));
	const wanted = sorted(all.filter((entry) => matches(entry, filter)));
	const calm = now - touched > CALM;
	if (!calm) {
		setTimeout(later, CALM);
		const at = new Map(shown.map((entry, place) => [entry.id, place]));
		wanted.sort((one, other) => (at.get(one.id) ?? Infinity) - (at.get(other.id) ?? Infinity));
	}
	const places = [];
	let kind = null;
	for (const entry of wanted) {
		const head = calm && entry.kind !== kind;
		if (head) places.push(heading((kind = entry.kind)));
		if (!rows.has(entry.id)) rows.set(entry.id, makeRow(entry));
		const row = rows.get(entry.id);
		fill(row, entry, now);
		places.push(row.node);
	}
	if (!calm) places.splice(0, places.length, ...keepHeads(places));
	let next = list.firstChild;
	for (const node of places) {
		if (node === next) next = next.nextSibling;
		else list.insertBefore(node, next);
	}
	while (next) {
		const after = next.nextSibling;
		next.remove();
		next = after;
	}
	for (const id of rows.keys()) if (!present.has(id)) rows.delete(id);
	shown = wanted;
	select(present);
	head(filter);
};

/** Returns rows with the headings that are there already, each before the row that it is before now. */
const keepHeads = (places) => {
	const before = new Map();
	for (const node of list.children) if (node.className === 'group' && node.nextSibling) before.set(node.nextSibling, node);
	return places.flatMap((node) => (before.has(node) ? [before.get(node), node] : [node]));
};

const later = () => { drawing ||= requestAnimationFrame(draw); };

/** Marks the selected row, and shows it. */
const select = (present = new Map(all.map((entry) => [entry.id, entry]))) => {
	const id = selected();
	const entry = present.get(id);
	const shownRow = shown.some((one) => one.id === id) ? id : shown[0]?.id;
	for (const [key, row] of rows) {
		row.link.tabIndex = key === shownRow ? 0 : -1;
		if (key === id) row.link.setAttribute('aria-current', 'true');
		else row.link.removeAttribute('aria-current');
	}
	const known = detail.entry;
	// Another worker of the same name is another one: nothing that is shown acts on it.
	const stays = known && known.id === id && entry && known.generation !== entry.generation && detail.node.contains(document.activeElement);
	if ((!entry || stays) && known?.id === id) detail.show({ ...known, gone: true });
	else detail.show(entry ?? null);
	document.body.classList.toggle('one', !!(entry || (known && known.id === id)));
};

const head = (filter) => {
	const of = counts(all);
	const parts = CLASSES.filter(([name]) => of.get(name)).map(([name, , title]) => {
		const word = { needs: of.get(name) === 1 ? 'needs you' : 'need you', failed: 'failed', working: 'at work', queued: 'later', ended: 'ended' }[name];
		return el('span', { class: `count k-${name}`, title }, `${of.get(name)} ${word}`);
	});
	const some = filter && shown.length !== all.length ? el('span', { class: 'count' }, `${shown.length} shown`) : '';
	$('counts').replaceChildren(...parts, some);
	if (!all.length) list.replaceChildren(el('li', { class: 'empty' }, 'No workers. Start one with: swarm spawn --name fix --tmux --worktree -- claude'));
	else if (!shown.length) list.replaceChildren(el('li', { class: 'empty' }, 'Nothing matches the filter.'));
	const needs = all.filter((entry) => entry.kind === 'needs');
	document.title = needs.length ? `(${needs.length}) swarm` : 'swarm';
	const words = needs.map((entry) => `${oneLine(entry.name)}: ${oneLine(entry.at).slice(0, 120)}`);
	const said = needs.length ? `Needs you: ${words.slice(0, 3).join('; ')}${words.length > 3 ? ` and ${words.length - 3} more` : ''}` : 'Nothing needs you';
	if (said !== told) $('said').textContent = told = said;
};

const problem = (text) => {
	$('link').textContent = text;
	$('link').hidden = !text;
};

const toast = (text, bad) => {
	const node = $('done');
	node.className = bad ? 'toast bad' : 'toast';
	node.textContent = clean(text);
	node.hidden = false;
	clearTimeout(toast.timer);
	if (!bad) toast.timer = setTimeout(() => { node.hidden = true; }, 4000);
};

/** Ends the question that is open with its answer. */
let settle = () => {};

/** Asks before something that cannot be taken back. Nothing is preset. */
const confirm = (text, yes) =>
	new Promise((resolve) => {
		const dialog = $('ask');
		settle(false);
		const end = (said) => () => { dialog.close(); resolve(said); };
		settle = resolve;
		dialog.replaceChildren(
			el('h2', { id: 'ask-title', tabIndex: -1, autofocus: true }, text),
			el('div', { class: 'answers' }, el('button', { type: 'button', class: 'danger', click: end(true) }, yes), el('button', { type: 'button', click: end(false) }, 'No')),
		);
		// The event is told later: it may be of a question before this one.
		dialog.onclose = () => { if (!dialog.open) resolve(false); };
		dialog.showModal();
	});

/** Does something with what was shown when it was asked for. Returns whether it was done. */
async function run(entry, order, { ask, yes, quiet } = {}) {
	if (!entry || entry.gone) return toast('Nothing was done: this one is gone', true);
	if (ask && !(await confirm(ask, yes))) return toast('Nothing was done');
	const about = entry.id.startsWith('w/') ? { name: entry.name, generation: entry.generation } : {};
	try {
		const done = await link.act({ ...order, ...about });
		if (!quiet) toast(`swarm ${done.words.filter((word) => !['--', '--json'].includes(word)).join(' ')}${done.told ? `: ${done.told}` : ' \u2713'}`);
		return true;
	} catch (error) {
		toast(error.message, true);
		return false;
	}
}

const move = (step) => {
	const at = shown.findIndex((entry) => entry.id === selected());
	const next = shown[Math.max(0, Math.min(shown.length - 1, at < 0 ? 0 : at + step))];
	if (next) open(next);
};

const open = (entry) => {
	history.replaceState(null, '', address(entry.id));
	select();
	rows.get(entry.id)?.link.focus({ preventScroll: true });
	rows.get(entry.id)?.link.scrollIntoView({ block: 'nearest' });
};

const nextNeed = () => {
	const needs = shown.filter((entry) => entry.kind === 'needs');
	const at = needs.findIndex((entry) => entry.id === selected());
	if (needs.length) open(needs[(at + 1) % needs.length]);
};

const KEYS = [
	['j k \u2193 \u2191', 'next, previous'],
	['w', 'next that needs you'],
	['/', 'filter: words that must be there; !word must not; state:, tag:, name:'],
	['Esc', 'back'],
	['1 \u2026 6', VIEWS.map(([, title]) => title.toLowerCase()).join(', ')],
	['a', 'to what is asked'],
	['t', 'type a line'],
	['x', 'stop'],
	['r', 'start again'],
	['m', 'land'],
	['u', 'read the text again'],
	['?', 'this help'],
];

const help = () => {
	const dialog = $('ask');
	const on = localStorage.getItem('swarm-keys') !== 'off';
	const box = el('input', { type: 'checkbox', checked: on, change: () => localStorage.setItem('swarm-keys', box.checked ? 'on' : 'off') });
	const terms = KEYS.flatMap(([key, what]) => [el('dt', {}, el('kbd', {}, key)), el('dd', {}, what)]);
	settle(false);
	dialog.onclose = null;
	dialog.replaceChildren(
		el('h2', { id: 'ask-title' }, 'Keys'), el('dl', {}, terms),
		el('label', { class: 'check' }, box, ' Single keys do this'),
		el('div', { class: 'answers' }, el('button', { type: 'button', autofocus: true, click: () => dialog.close() }, 'Close')),
	);
	dialog.showModal();
};

const press = (selector) => detail.node.querySelector(selector)?.click();
const key = {
	j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
	w: nextNeed, '/': () => $('filter').focus(), '?': help,
	a: () => detail.node.querySelector('.request button, .request input')?.focus(),
	t: () => $('line')?.focus(), u: () => detail.load(),
	x: () => press('.acts .danger'), r: () => press('.acts [title$="(r)"]'), m: () => press('.acts [title$="(m)"]'),
	Escape: () => { history.replaceState(null, '', '#/'); select(); rows.get(shown[0]?.id)?.link.focus(); },
};

document.addEventListener('keydown', (event) => {
	touched = Date.now();
	if (event.ctrlKey || event.altKey || event.metaKey || $('ask').open) return;
	const at = event.target;
	const typing = at.matches('input:not([type=checkbox]), textarea');
	if (typing) {
		if (event.key === 'Escape') {
			if (at === $('filter') && at.value) at.value = '';
			at.blur();
			later();
		}
		return;
	}
	const arrow = event.key.startsWith('Arrow');
	if (arrow && !(at === document.body || list.contains(at))) return;
	if (!arrow && event.key !== 'Escape' && localStorage.getItem('swarm-keys') === 'off') return;
	const view = VIEWS.find(([, , digit]) => digit === event.key);
	const does = view ? () => detail.choose(view[0]) : key[event.key];
	if (!does) return;
	event.preventDefault();
	does();
});

$('list').addEventListener('pointermove', () => { touched = Date.now(); });
$('filter').addEventListener('input', () => { touched = 0; later(); });
$('help').addEventListener('click', help);
window.addEventListener('hashchange', () => {
	if (location.hash.startsWith('#code=')) return location.reload();
	select();
	if (selected() && matchMedia('(max-width: 45rem)').matches) $('detail').focus();
});

const take = (message) => {
	if (board.take(message)) later();
	else if (message.kind === 'screen') detail.takeScreen(message);
	else if (message.kind === 'warnings') problem(message.warnings.map((text) => oneLine(text)).join('; '));
};

const states = {
	lost: 'The connection is lost; trying again\u2026',
	refused: 'This tab is of an earlier start: open an address that \u201cswarm web\u201d has printed since.',
	none: 'Open the whole address that \u201cswarm web\u201d printed, with the part behind #. Each can be used once: press Enter in its terminal for another.',
	unreached: 'The server does not answer: reload this page to try again.',
};

const start = async () => {
	$('list').append(list);
	try {
		if (!await link.enter()) return problem(states.none);
	} catch (error) {
		const told = error instanceof link.Refused ? oneLine(error.message) : states.unreached;
		return problem(told[0].toUpperCase() + told.slice(1));
	}
	stream = new link.Stream(() => ({ since: board.rev, board: board.id, ...detail.screen }), take, (state) => problem(states[state] ?? ''));
	try {
		const hello = await link.json('/v1/hello');
		site.allow = hello.allow;
		$('host').textContent = ` ${oneLine(hello.host)}`;
	} catch (error) {
		if (error.status === 401) return problem(states.refused);
	}
	stream.open();
	setInterval(() => document.hidden || later(), 60000);
};

start();
