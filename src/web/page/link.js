// The connection to the server: the code and the token, requests, and the stream of changes.

const KEY = 'swarm-token', CODE = 'swarm-code';

let token = null;

/** An answer that is no success. */
export class Refused extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

const get = async (path, options = {}) => {
	const headers = { ...(token && { authorization: `Bearer ${token}` }), ...options.headers };
	const answer = await fetch(path, { ...options, headers, cache: 'no-store', credentials: 'omit', redirect: 'error' });
	if (answer.ok) return answer;
	const said = await answer.json().catch(() => ({}));
	throw new Refused(answer.status, said.error ?? `the server answered ${answer.status}`);
};

export const json = async (path, query = {}, signal) => {
	const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value != null));
	return (await get(words.size ? `${path}?${words}` : path, { signal })).json();
};

const post = async (path, value) =>
	(await get(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(value) })).json();
export const act = (order) => post('/v1/act', order);

/** Exchanges the code in the address for the token, which this tab keeps, and takes it out of the address. Returns whether there is a token. */
export const enter = async () => {
	const code = /^#code=([0-9a-f]{64})$/.exec(location.hash)?.[1];
	const leave = () => code && history.replaceState(null, '', location.pathname + '#/');
	if (code && sessionStorage.getItem(CODE) !== code) {
		try {
			sessionStorage.setItem(KEY, (await post('/v1/enter', { code })).token);
			sessionStorage.setItem(CODE, code);
		} catch (error) {
			if (error instanceof Refused) leave();
			throw error;
		}
	}
	leave();
	token = sessionStorage.getItem(KEY);
	return token !== null;
};

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
