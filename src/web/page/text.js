// Text that others wrote, as nodes. Nothing is ever parsed as markup.

/** Characters that change how the text around them is shown, or that show nothing. */
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Replaces characters that could deceive by a visible name. */
export const clean = (text) =>
	String(text ?? '').replace(ODD, (c) => '\u2039' + c.charCodeAt(0).toString(16).padStart(2, '0') + '\u203a');

/** The same for one line: line ends and tabs become blanks. */
export const oneLine = (text) => clean(String(text ?? '').replace(/[\n\r\t]+/g, ' '));

/** Shortens a text in its middle, where names differ least. */
export const short = (text, max = 80) => {
	const all = [...text];
	if (all.length <= max) return text;
	const half = Math.floor((max - 1) / 2);
	return all.slice(0, half).join('') + '\u2026' + all.slice(all.length - half).join('');
};

// Makes an element. Attributes whose value is null or false are left out; functions listen.
// Children that are no nodes become text.
export const el = (tag, attributes = {}, ...children) => {
	const node = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes)) {
		if (value == null || value === false) continue;
		if (typeof value === 'function') node.addEventListener(name, value);
		else if (name === 'class') node.className = value;
		else if (name in node && typeof value !== 'string') node[name] = value;
		else node.setAttribute(name, value === true ? '' : value);
	}
	node.append(...children.flat().filter((child) => child != null && child !== false));
	return node;
};

const SVG = 'http://www.w3.org/2000/svg';
export const svg = (tag, attributes = {}, ...children) => {
	const node = document.createElementNS(SVG, tag);
	for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
	node.append(...children);
	return node;
};

const level = (index) => (index ? 55 + 40 * index : 0);
/** Returns one of the 240 colours behind the palette. */
const rgb = (index) => {
	if (index >= 232) return `rgb(${Array(3).fill(8 + 10 * (index - 232))})`;
	const at = index - 16;
	return `rgb(${[Math.floor(at / 36), Math.floor(at / 6) % 6, at % 6].map(level)})`;
};

const colour = (node, value, property, prefix) => {
	if (value == null) return;
	if (typeof value === 'number' && value < 16) node.classList.add(prefix + (prefix === 'b' ? value % 8 : value));
	else node.style[property] = typeof value === 'number' ? rgb(value) : /^#[0-9a-f]{6}$/.test(value) ? value : '';
};

const MARKS = { b: 'bold', d: 'dim', i: 'italic', u: 'under', r: 'reverse', s: 'struck' };

const run = (part) => {
	if (typeof part === 'string') return clean(part);
	const [text, style] = part;
	const node = el('span', {}, clean(text));
	for (const mark of style.a ?? '') if (MARKS[mark]) node.classList.add(MARKS[mark]);
	colour(node, style.f, 'color', 'f');
	colour(node, style.b, 'backgroundColor', 'b');
	return node;
};

/** Returns one line of the server as an element. */
export const line = (parts) => {
	const node = el('div', { class: 'line' });
	if (typeof parts === 'string') node.append(clean(parts));
	else node.append(...parts.map(run));
	return node;
};

/** Returns the plain text of a line of the server. */
export const plain = (parts) =>
	typeof parts === 'string' ? parts : parts.map((part) => (typeof part === 'string' ? part : part[0])).join('');

/** Shows lines in an element; those that are there already stay, so that a selection does. */
export const paint = (node, lines) => {
	const known = node.lines ?? [];
	lines.forEach((parts, at) => {
		const text = JSON.stringify(parts);
		if (known[at] === text) return;
		const made = line(parts);
		if (at < node.childNodes.length) node.replaceChild(made, node.childNodes[at]);
		else node.append(made);
		known[at] = text;
	});
	while (node.childNodes.length > lines.length) node.lastChild.remove();
	known.length = lines.length;
	node.lines = known;
};

/** Returns how long ago something was, in words of at most four characters. */
export const age = (since, now) => {
	if (since == null) return '';
	const minutes = Math.floor((now - since) / 60000);
	if (minutes < 1) return '<1m';
	if (minutes < 60) return `${minutes}m`;
	if (minutes < 48 * 60) return `${Math.floor(minutes / 60)}h`;
	return `${Math.floor(minutes / 1440)}d`;
};
