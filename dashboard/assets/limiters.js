// The list of all RateLimiters.
import { $, bar, el, exact, keyed, nameNode, number, pace, percent, rate, say, show } from "./dom.js";
import { follow } from "./api.js";
import { openChange } from "./change.js";

const rows = 50;
const first = { search: "", sort: "use", reverse: false, offset: 0 };
const state = { ...first };
let refusals = false;
let write = false;
let pointed = false; // at the rows, by pointer or focus: they stay where they are then
let typing = 0;
let last = null;

const columns = { name: "name", use: "use", free: "free", rate: "rate", granted: "granted", refused: "refusals" };

// read takes over what the address says of the list, and keeps links back to it.
function read(address) {
  const asked = new URLSearchParams(address.split("?")[1] ?? "");
  const sort = asked.get("sort");
  Object.assign(state, {
    search: (asked.get("search") ?? "").slice(0, 200),
    sort: [...$("sort").options].some((option) => option.value === sort) ? sort : first.sort,
    reverse: asked.get("reverse") === "true",
    offset: Math.max(0, Math.floor(Number(asked.get("offset"))) || 0),
  });
}

function address() {
  const asked = new URLSearchParams(Object.entries(state).filter(([name, value]) => value !== first[name]));
  return "#/" + (asked.size > 0 ? "?" + asked : "");
}

export function open(hash, about) {
  read(hash);
  for (const link of [$("back"), document.querySelector("[data-nav=limiters]")]) link.setAttribute("href", address());
  ({ refusals, write } = about);
  show($("refusals-note"), !refusals);
  $("limiters").dataset.refusals = refusals ? "yes" : "no";
  $("sort").querySelector("[value=refusals]").hidden = !refusals;
  if (document.activeElement !== $("search")) $("search").value = state.search;
  $("sort").value = state.sort;
  $("reverse").checked = state.reverse;
  follow("limiters/stream?" + new URLSearchParams({ ...state, limit: rows }), { limiters: update });
  for (const head of document.querySelectorAll("#limiters [data-head]")) {
    if (columns[head.dataset.head] !== state.sort) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", (state.sort === "name" || state.sort === "free") !== state.reverse ? "ascending" : "descending");
  }
  document.title = "Rate limiters";
  return () => clearTimeout(typing);
}

function change(what) {
  Object.assign(state, what);
  $("limiters").tBodies[0].dataset.fresh = "no"; // another list: nothing of the old one is held
  history.replaceState(null, "", address());
  open(location.hash, { refusals, write });
}

function makeRow(item) {
  const name = nameNode(item.name);
  const row = el("tr", { "data-id": item.id });
  const cell = (column, ...children) => el("td", { "data-col": column }, ...children);
  const cells = {
    link: el(item.id ? "a" : "span", { href: item.id ? "#/limiter/" + item.id : null, title: item.name }, name),
    use: bar(),
    free: cell("free"),
    origin: el("span", { class: "faint" }),
    rate: el("span"),
    granted: cell("granted"),
    refused: cell("refused"),
    callers: cell("callers"),
  };
  const limit = cell("rate", cells.origin, " ", cells.rate);
  for (const node of [cells.free, limit, cells.granted, cells.refused]) node.className = "n";
  row.append(el("th", { scope: "row", "data-col": "name" }, cells.link), cell("use", cells.use), cells.free, limit, cells.granted, cells.refused, cells.callers);
  row.cells_ = cells;
  return row;
}

const own = (item) => (item.type === "PER_CLIENT" ? " each" : "");

export function callersText(item) {
  if (item.broken) return item.broken + ". What to do: " + item.cure + ".";
  if (item.callers.length === 0) return "–";
  return item.callers.map((caller) => caller.who + " " + percent(caller.share)).join(", ");
}

function updateRow(row, item) {
  const cells = row.cells_;
  row.classList.remove("stale");
  row.dataset.state = item.state ?? "";
  cells.use.update(item.use, item.state);
  say(cells.free, number(item.free));
  say(cells.origin, item.origin ?? "");
  say(cells.rate, item.interval_ms > 0 ? rate(item.rate, item.interval_ms) + own(item) : "–"); // a broken one may have none
  say(cells.granted, pace(item.broken ? null : item.granted_per_second));
  say(cells.refused, pace(item.refused_per_second));
  const callers = callersText(item);
  if (cells.callers.textContent !== callers) {
    cells.callers.replaceChildren(nameNode(callers));
    cells.callers.title = callers;
  }
}

function update(list) {
  last = list;
  const body = $("limiters").tBodies[0];
  say($("held"), pointed && !$("hold").checked ? "held while you are at a row" : "");
  const held = ($("hold").checked || pointed) && body.dataset.fresh === "yes" && body.children.length > 0;
  if (held) {
    const found = new Map(list.limiters.map((item) => [item.id || item.name, item]));
    for (const row of body.children) {
      const item = found.get(row.dataset.key);
      if (item) updateRow(row, item);
      else row.classList.add("stale");
    }
  } else {
    keyed(body, list.limiters, (item) => item.id || item.name, makeRow, updateRow);
    body.dataset.fresh = "yes";
  }
  show($("many"), write && state.search !== "" && list.matching > 0);
  say($("change-all"), "Change the rate of all" + (list.complete ? " " + exact(list.matching) : "") + "…");
  const from = Math.min(list.offset + 1, list.matching);
  say($("page-info"), exact(from) + "–" + exact(Math.min(list.offset + rows, list.matching)) + " of " + exact(list.matching));
  $("prev").disabled = list.offset === 0;
  $("next").disabled = list.offset + rows >= list.matching;
  say($("summary"), (list.broken > 0 ? exact(list.broken) + " broken, " : "") + exact(list.exhausted) + " used up, " + exact(list.in_use) + " in use of " +
    exact(list.known) + (list.more ? " limiters or more" : " limiters") + (list.complete ? "" : "; " + percent(list.walked) + " of the keys seen so far"));
  show($("empty"), list.matching === 0);
  show($("limiters"), list.matching > 0 || !list.complete);
  say($("empty-what"), list.complete ? (state.search ? "No limiter has this in its name." : "There are no limiters.") : "Looking for limiters…");
  show($("empty-search"), list.complete && state.search !== "");
  show($("empty-next"), list.complete && state.search === "");
  costText(list.cost, list.round_ms);
  if (list.offset > 0 && list.offset >= list.matching && list.complete) change({ offset: Math.max(0, Math.floor((list.matching - 1) / rows) * rows) });
}

export function costText(cost, round) {
  const server = cost.server_us_per_second === null ? "" : ", " + (cost.server_us_per_second / 1000).toFixed(1) + " ms/s of the server's time";
  say($("cost"), "All viewers together cost " + exact(cost.commands_per_second) + " commands/s" + server +
    (round > 0 ? "; all keys are seen every " + Math.max(1, Math.round(round / 1000)) + " s" : "") + ".");
}

$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => change({ search: $("search").value, offset: 0 }), 250);
});
$("sort").addEventListener("change", () => change({ sort: $("sort").value, offset: 0 }));
$("reverse").addEventListener("change", () => change({ reverse: $("reverse").checked, offset: 0 }));
for (const button of document.querySelectorAll("#limiters [data-sort]")) {
  button.addEventListener("click", () => {
    const sort = button.dataset.sort;
    change({ sort, reverse: sort === state.sort && !state.reverse, offset: 0 });
  });
}
$("change-all").addEventListener("click", () => {
  const like = last.limiters.find((item) => !item.broken);
  openChange("rates", { name: "names with " + state.search, rate: like?.rate, interval_ms: like?.interval_ms }, null, { search: state.search });
});
$("empty-search").addEventListener("click", () => {
  $("search").value = "";
  change({ search: "", offset: 0 });
  $("search").focus();
});
$("prev").addEventListener("click", () => change({ offset: Math.max(0, state.offset - rows) }));
$("next").addEventListener("click", () => change({ offset: state.offset + rows }));
$("controls").addEventListener("submit", (event) => event.preventDefault());
const body = $("limiters").tBodies[0];
const point = (is) => () => {
  pointed = is;
  if (last !== null && !$("view-limiters").hidden) update(last);
};
body.addEventListener("pointerenter", point(true));
body.addEventListener("pointerleave", point(false));
body.addEventListener("focusin", point(true));
body.addEventListener("focusout", point(false));
