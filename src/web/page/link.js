// The connection to the server: the token, requests, and the stream of changes.

const KEY = 'swarm-token';

/** Takes the token out of the address, so that it is neither in the history nor seen by others. */
export const takeToken = () => {
	const given = /^#t=([0-9a-f]{64})$/.exec(location.hash);
	if (given) {
		sessionStorage.setItem(KEY, given[1]);
		history.replaceState(null, '', location.pathname + '#/');
	}
	return sessionStorage.getItem(KEY);
};

let token = null;
export const use = (text) => { token = text; };

/** An answer that is no success. */
export class Refused extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

const get = async (path, options = {}) => {
	const headers = { authorization: `Bearer ${token}`, ...options.headers };
	const answer = await fetch(path, { ...options, headers, cache: 'no-store', credentials: 'omit', redirect: 'error' });
	if (answer.ok) return answer;
	const said = await answer.json().catch(() => ({}));
	throw new Refused(answer.status, said.error ?? `the server answered ${answer.status}`);
};

export const json = async (path, query = {}, signal) => {
	const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value != null));
	return (await get(words.size ? `${path}?${words}` : path, { signal })).json();
};

export const act = async (order) =>
	(await get('/v1/act', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(order) })).json();

/** Time for which a hidden tab keeps its stream. */
const HIDDEN = 30000;
/** Silence after which the stream is opened again. */
const SILENCE = 70000;

/** Follows the board. `query` says what the page has and shows, `take` gets each message, `tell` the state. */
export class Stream {
	constructor(query, take, tell) {
		Object.assign(this, { query, take, tell, stop: null, wait: 0, timer: null, rest: null });
		document.addEventListener('visibilitychange', () => this.seen());
		window.addEventListener('online', () => this.open());
		window.addEventListener('pageshow', () => this.seen());
	}

	seen() {
		clearTimeout(this.rest);
		if (document.hidden) this.rest = setTimeout(() => this.close('hidden'), HIDDEN);
		else if (this.stop?.signal.aborted !== false) this.open();
	}

	close(state) {
		clearTimeout(this.timer);
		this.stop?.abort();
		if (state) this.tell(state);
	}

	/** Opens the stream anew, from the present revision on. */
	async open() {
		this.close();
		const stop = (this.stop = new AbortController());
		let silence;
		const alive = () => {
			clearTimeout(silence);
			silence = setTimeout(() => stop.abort('silent'), SILENCE);
		};
		try {
			alive();
			const words = new URLSearchParams(Object.entries(this.query()).filter(([, value]) => value != null));
			const answer = await get(`/v1/changes?${words}`, { signal: stop.signal });
			this.tell('open');
			this.wait = 0;
			const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
			for (let rest = ''; ; ) {
				const { value, done } = await reader.read();
				if (done) break;
				alive();
				const lines = (rest + value).split('\n');
				rest = lines.pop();
				for (const line of lines) if (line) this.take(JSON.parse(line));
			}
		} catch (error) {
			if (error instanceof Refused && error.status === 401) {
				clearTimeout(silence);
				this.tell('refused');
				return;
			}
		}
		clearTimeout(silence);
		if (this.stop !== stop || (stop.signal.aborted && stop.signal.reason !== 'silent')) return;
		this.tell('lost');
		this.wait = Math.min(this.wait * 2 || 500, 15000);
		this.timer = setTimeout(() => this.open(), this.wait);
	}
}
