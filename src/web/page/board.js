// The board as the page has it, and what it says: pure functions over the rows that the server sends.

/** Classes of rows in their order: those that need somebody first. */
export const CLASSES = [
	['needs', '!', 'Needs you'],
	['failed', '\u00d7', 'Failed or stuck'],
	['working', '\u25b8', 'At work'],
	['queued', '~', 'Goes on later'],
	['ended', '\u00b7', 'Ended'],
];
const ORDER = new Map(CLASSES.map(([name], at) => [name, at]));

/** Lists of rows in a message of the server, and the key of each. */
export const KINDS = { worker: ['workers', 'name'], item: ['items', 'key'], run: ['runs', 'key'], workstream: ['workstreams', 'key'], flow: ['flows', 'key'] };

/** Rows by kind and key, with the revision that they have. */
export class Board {
	id = null;
	rev = 0;
	rows = new Map(Object.keys(KINDS).map((kind) => [kind, new Map()]));

	/** Takes a message. Returns false if it is none of the board. */
	take(message) {
		const whole = message.schema === 'swarm.board/1';
		if (!whole && message.schema !== 'swarm.board.change/1') return false;
		if (whole) for (const rows of this.rows.values()) rows.clear();
		for (const gone of message.gone ?? []) this.rows.get(gone.kind)?.delete(gone.name);
		for (const [kind, [list, key]] of Object.entries(KINDS))
			for (const row of message[list] ?? []) this.rows.get(kind).set(row[key], row);
		this.id = message.board;
		this.rev = message.rev;
		return true;
	}

	get(kind, key) {
		return this.rows.get(kind)?.get(key);
	}

	list(kind) {
		return [...(this.rows.get(kind)?.values() ?? [])];
	}
}

/** Reads with which request, or how else, a person answers. */
export const answer = (needs) => {
	const [, verb, what] = /^swarm (\S+) (\S+)/.exec(needs?.answer ?? '') ?? [];
	if (verb === 'approve' || verb === 'deny') return { kind: 'permission', request: what };
	if (verb === 'answer') return { kind: 'question', request: what };
	return verb ? { kind: 'window' } : null;
};

const command = (row) => (row.cmd ?? []).join(' ');

const workerClass = (row) => {
	if (row.needs) return 'needs';
	if (row.failed || row.stuck) return 'failed';
	if (['starting', 'stopping', 'backoff', 'queued'].includes(row.state)) return 'queued';
	return row.status === 'running' ? 'working' : 'ended';
};

/** Returns the state of a worker in a word or two, what it does, and since when. */
const told = (row, kind) => {
	const { needs, exit, activity } = row;
	if (needs) return [['question', 'permission'].includes(needs.kind) ? 'asks' : 'waits', needs.text, needs.since_ms];
	if (row.stuck) return ['stuck', row.stuck, activity?.since_ms];
	if (exit) {
		const failed = exit.code != null ? `exited ${exit.code}` : (exit.signal ?? 'failed');
		const why = ['exited', 'stopped', null, undefined].includes(exit.reason) ? command(row) : `${exit.reason}: ${command(row)}`;
		return [kind === 'failed' ? failed : row.state, row.given_up ?? why, exit.ended_at_ms];
	}
	if (row.state === 'running' && activity) return [activity.doing, activity.what ?? command(row), activity.since_ms];
	const on = row.state === 'elsewhere' && row.host ? `on ${row.host}: ` : '';
	return [row.state, on + command(row), (kind === 'queued' && row.next_start_ms) || Date.parse(row.started)];
};

const workerEntry = (row) => {
	const kind = workerClass(row);
	const [state, at, since] = told(row, kind);
	return {
		id: `w/${row.name}`, kind, state, at, since, name: row.name, tags: row.tags ?? [], place: row.worktree?.branch ?? '',
		generation: row.generation, answer: answer(row.needs), running: row.status === 'running', window: !!row.tmux && row.status === 'running', row,
	};
};

const itemEntry = (row) => {
	const kind = { conflict: 'failed', rejected: 'failed', waiting: 'needs', queued: 'queued' }[row.state] ?? 'working';
	const why = row.reason ?? (row.files ?? []).join(', ');
	const at = why ? `${row.base}: ${why}` : `onto ${row.base}`;
	return { id: `i/${row.key}`, kind, state: row.state, at, since: row.settled_ms ?? row.queued_ms, name: row.name, tags: [], place: row.base, row };
};

const STAGES = { failed: 'failed', asking: 'needs', working: 'working', finishing: 'working', merging: 'working', done: 'ended' };

/** Returns a run with its workstreams as nodes of a graph. */
const runEntry = (row, all) => {
	const nodes = all.filter((one) => one.run === row.run && one.home === row.home).map((one) => ({
		id: one.id, name: one.id, state: one.stage, kind: one.needs ? 'needs' : (STAGES[one.stage] ?? 'queued'), after: one.after ?? [],
		worker: one.worker, at: one.needs ? `${one.needs.text} (${one.needs.answer})` : (one.error ?? one.summary ?? ''),
	}));
	const count = (kind) => nodes.filter((node) => node.kind === kind).length;
	const kind = count('needs') ? 'needs' : count('failed') || ['failed', 'interrupted', 'unreadable'].includes(row.status) ? 'failed' : ({ running: 'working', paused: 'queued', stopping: 'queued' }[row.status] ?? 'ended');
	const at = row.error ?? `${count('ended')} of ${nodes.length} done${count('failed') ? `, ${count('failed')} failed` : ''}`;
	return { id: `r/${row.key}`, kind, state: row.status, at, since: null, name: row.run, tags: [], place: row.base ?? '', row, nodes };
};

const flowEntry = (row) => {
	const asks = row.requests ?? [];
	const open = new Set(asks.map((one) => one.node));
	const nodes = (row.nodes ?? []).map((one) => ({ id: one.id, name: one.id, state: one.answered ? 'answered' : one.state, kind: open.has(one.id) ? 'needs' : ({ running: 'working', done: 'ended' }[one.state] ?? 'queued'), after: [], at: one.role }));
	const kind = asks.length ? 'needs' : row.damage?.length || row.stalled || row.not_queued ? 'failed' : row.run === false ? 'ended' : 'working';
	const first = asks[0];
	const at = first ? `${first.node}: ${first.reason}${first.text ? `: ${first.text}` : ''}` : String(row.not_queued ?? row.stalled ?? row.damage ?? '');
	return { id: `f/${row.key}`, kind, state: row.status ?? 'flow', at, since: null, name: row.name ?? row.flow ?? row.key, tags: [], place: `${row.project}/${row.flow}`, row, nodes, asks };
};

/** Returns how a request of a flow is answered: with yes or no, with one of some words, or with a text. */
export const gate = (one) => {
	if (one.cut) return { kind: 'long' };
	if (one.answers?.yes) return { kind: 'choice', reason: one.answers.yes[1] === 'approve', words: one.answers.yes[1] === 'feedback' ? ['Grant', 'Deny'] : one.answers.yes[1] === 'allow' ? ['Allow', 'Deny'] : ['Approve', 'Decline'] };
	if (one.answers?.text?.[1] === 'improve') return { kind: 'words', words: ['graph-based', 'parallel', 'none'] };
	return one.answers?.text ? { kind: 'text' } : { kind: 'long' };
};

/** Returns what the list shows. */
export const entries = (board) => {
	const streams = board.list('workstream');
	return [...board.list('worker').map(workerEntry), ...board.list('item').map(itemEntry), ...board.list('run').map((row) => runEntry(row, streams)), ...board.list('flow').map(flowEntry)];
};

/** Reports whether all words are in an entry; `!word` must not be, `state:`, `tag:` and `name:` look at one thing only. */
export const matches = (entry, filter) =>
	filter.toLowerCase().split(/\s+/).filter(Boolean).every((word) => {
		const not = word.length > 1 && word.startsWith('!');
		const [, part, rest] = /^(state|tag|name):(.*)$/.exec(not ? word.slice(1) : word) ?? [];
		const texts = { state: [entry.state, entry.kind], tag: entry.tags, name: [entry.name] }[part] ?? [entry.name, entry.state, entry.at, entry.place, ...entry.tags];
		const has = texts.some((text) => String(text).toLowerCase().includes(part ? rest : not ? word.slice(1) : word));
		return has !== not;
	});

/** Sorts by need, then by name. */
export const sorted = (list) =>
	list.sort((one, other) => ORDER.get(one.kind) - ORDER.get(other.kind) || one.id.slice(0, 1).localeCompare(other.id.slice(0, 1)) * -1 || (one.name < other.name ? -1 : one.name > other.name ? 1 : 0));

export const counts = (list) => {
	const of = new Map(CLASSES.map(([name]) => [name, 0]));
	for (const entry of list) of.set(entry.kind, of.get(entry.kind) + 1);
	return of;
};

/** Splits a patch into files, hunks and lines with their numbers. */
export const patch = (lines) => {
	const files = [];
	const begin = [];
	let file = null, hunk = null, old = 0, now = 0;
	for (const text of lines) {
		const head = /^diff --git (?:"?a\/(.*?)"?) (?:"?b\/(.*?)"?)$/.exec(text);
		const at = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$/.exec(text);
		if (hunk && (text[0] === '\\' || (Math.max(...hunk.left) > 0 && /^[ +\-]|^$/.test(text)))) {
			const sign = text[0] ?? ' ';
			if (sign === '\\') hunk.lines.push({ sign, text: text.slice(2) });
			else {
				const line = { sign, text: text.slice(1), old: sign === '+' ? null : old, now: sign === '-' ? null : now };
				if (sign !== '+') (old += 1), (hunk.left[0] -= 1);
				if (sign !== '-') (now += 1), (hunk.left[1] -= 1);
				if (sign === '+') file.added += 1;
				if (sign === '-') file.removed += 1;
				hunk.lines.push(line);
			}
		} else if (head) {
			file = { name: head[2], from: head[1] === head[2] ? null : head[1], what: [], hunks: [], added: 0, removed: 0 };
			files.push(file);
			hunk = null;
		} else if (at && file) {
			[old, now] = [Number(at[1]), Number(at[3])];
			hunk = { title: at[5], old, now, left: [Number(at[2] ?? 1), Number(at[4] ?? 1)], lines: [] };
			file.hunks.push(hunk);
		} else if (file && /^(new file|deleted file|old mode|new mode|rename|copy|similarity|Binary files|GIT binary)/.test(text)) {
			file.what.push(text);
		} else if (!file) begin.push(text);
	}
	return { begin, files };
};

/** Places nodes in layers, each behind all that it waits for. Circles end. */
export const layers = (nodes) => {
	const byId = new Map(nodes.map((node) => [node.id, node]));
	const level = new Map();
	const find = (id, seen) => {
		if (level.has(id)) return level.get(id);
		if (seen.has(id)) return 0;
		seen.add(id);
		const before = (byId.get(id)?.after ?? []).filter((other) => byId.has(other));
		const found = before.length ? 1 + Math.max(...before.map((other) => find(other, seen))) : 0;
		seen.delete(id);
		level.set(id, found);
		return found;
	};
	const columns = [];
	for (const node of nodes) (columns[find(node.id, new Set())] ??= []).push(node);
	return columns.filter(Boolean);
};
