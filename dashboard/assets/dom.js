// What all parts of the page need: elements, text, numbers and times.

export const $ = (id) => document.getElementById(id);

// el makes an element. Attributes are set as such, children are nodes or text: nothing
// becomes markup.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// say sets a text, only if it is another.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// nameNode is a name of Redis, kept apart from the direction of what is around it.
export const nameNode = (text) => el("bdi", { dir: "auto", class: "name" }, text);

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

export const number = (n) => (n === null || n === undefined ? "–" : Math.abs(n) >= 1e7 ? short.format(n) : whole.format(n));
export const exact = (n) => (n === null || n === undefined ? "–" : whole.format(n));
export const pace = (n) => (n === null || n === undefined ? "–" : n >= 1e5 ? short.format(n) : tenths.format(n));
export const percent = (part) => Math.floor(part * 100) + "%";

const hour = 3600000;
const minute = 60000;

// duration writes so many ms as rrl does, by two units at most: 1h30m, 1.5s.
export function duration(ms) {
  if (ms === null || ms === undefined) return "never";
  if (ms < 0) return "–";
  if (ms > 0 && ms < 1000) return Math.round(ms) + "ms";
  if (ms < minute) return Math.round(ms / 100) / 10 + "s";
  const [unit, size, next, smaller] = ms >= hour ? ["h", hour, "m", minute] : ["m", minute, "s", 1000];
  const count = Math.floor(ms / size);
  const rest = Math.floor((ms - count * size) / smaller);
  return count + unit + (rest > 0 ? rest + next : "");
}

const units = [["d", 24 * hour], ["h", hour], ["min", minute], ["s", 1000], ["ms", 1]];

// inUnit splits ms into a number and the largest unit of which it is whole.
export function inUnit(ms) {
  const [unit, size] = units.find(([, size]) => ms > 0 && ms % size === 0) ?? ["s", 1000];
  return [ms / size, unit];
}

export const fromUnit = (count, unit) => Math.round(count * (units.find(([name]) => name === unit) ?? units[3])[1]);
export const unitNames = units.map(([name]) => name);

export const rate = (permits, intervalMS) => number(permits) + "/" + duration(intervalMS);

const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
export const time = (text) => clock.format(new Date(text));

// sharedBy are the types in words, the same as in the list of changes.
export const sharedBy = { OVERALL: "all clients together", PER_CLIENT: "each client for itself" };

// signs stand before the states that the server decides, so that they tell without colour.
const signs = { broken: "✖", "used up": "■", refusing: "▲" };

// stateText is the state's word behind its sign; "" if there is nothing to say.
export const stateText = (state) => (signs[state] ? signs[state] + " " + state : "");

// bar is a bar with its part in text beside it; update sets both, or a state in place of
// the part.
export function bar() {
  const fill = el("span", { class: "fill" });
  const text = el("span", { class: "part" });
  const node = el("span", { class: "bar-cell" }, el("span", { class: "bar", "aria-hidden": "true" }, fill), text);
  node.update = (part, state) => {
    const known = part !== null && part !== undefined;
    const width = known ? Math.min(Math.max(part, 0), 1) : 0;
    fill.style.inlineSize = width * 100 + "%";
    const word = stateText(state);
    const level = word ? state : width >= 1 ? "used up" : width >= 0.8 ? "high" : "low";
    if (node.dataset.level !== level) node.dataset.level = level;
    say(text, word || (known ? percent(part) : "–"));
  };
  return node;
}

// keyed makes the children of a parent those of the items, in their order, and moves
// only what stands elsewhere.
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let node = old.get(key);
    if (node === undefined) {
      node = make(item);
      node.dataset.key = key;
    }
    old.delete(key);
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const node of old.values()) node.remove();
}

// idOf is the id of a name that was typed: base64url of its UTF-8.
export function idOf(name) {
  const bytes = new TextEncoder().encode(name);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

// inQuery writes the name of an id as a query has it: its bytes, percent-encoded. What is no id names nothing.
export function inQuery(id) {
  try {
    return atob(id.replaceAll("-", "+").replaceAll("_", "/")).replace(/[^\w.~-]/g, (byte) => "%" + byte.charCodeAt(0).toString(16).padStart(2, "0"));
  } catch {
    return "";
  }
}
