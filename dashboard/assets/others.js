// Keys of fixed windows, sliding logs and token buckets; any key; thresholds.
import { $, bar, duration, el, exact, idOf, inQuery, keyed, nameNode, number, say, show } from "./dom.js";
import { follow, get, whileSeen } from "./api.js";
import { costText } from "./limiters.js";
import { openChange } from "./change.js";

const rows = 50;
const state = { search: "", offset: 0 };
let typing = 0;

export function open(_, about) {
  document.title = "Other keys – rate limiters";
  if (about) {
    show($("hashes-none"), about.thresholds.length === 0);
    $("hashes").replaceChildren(...about.thresholds.map((hash) => el("a", { href: "#/thresholds/" + hash.id }, nameNode(hash.name))));
    if (about.others.length === 0) {
      say($("others-empty"), "No keys of such limiters were named: rrl dashboard --keys does that, or Others of dashboard.Config.");
      show($("others-empty"), true);
      show($("others"), false);
      show($("others-controls"), false);
    }
  }
  follow("others/stream?" + new URLSearchParams({ ...state, limit: rows }), { others: update });
  return () => clearTimeout(typing);
}

function change(what) {
  Object.assign(state, what);
  open();
}

function makeRow(item) {
  const use = bar();
  const row = el("tr", { "data-id": item.id }, el("th", { scope: "row", "data-col": "name" }, el("a", { href: "#/key/" + item.id, title: item.name }, nameNode(item.name))),
    el("td", { "data-col": "use" }, use), el("td", { class: "n", "data-col": "free" }), el("td", { "data-col": "kind" }), el("td", { class: "n", "data-col": "reset" }));
  row.use_ = use;
  return row;
}

function update(list) {
  keyed($("others").tBodies[0], list.keys, (item) => item.id || item.name, makeRow, (row, item) => {
    row.use_.update(item.use ?? null, item.use >= 1 ? "used up" : "");
    say(row.children[2], item.error ? "–" : number(item.free) + " of " + number(item.limit));
    say(row.children[3], item.error ? item.of + ": " + item.error : item.of);
    say(row.children[4], item.error ? "–" : item.reset_ms === 0 ? "full" : duration(item.reset_ms));
  });
  say($("others-summary"), exact(list.known) + (list.more ? " keys or more" : " keys"));
  const from = Math.min(list.offset + 1, list.matching);
  say($("others-page"), exact(from) + "–" + exact(Math.min(list.offset + rows, list.matching)) + " of " + exact(list.matching));
  $("others-prev").disabled = list.offset === 0;
  $("others-next").disabled = list.offset + rows >= list.matching;
  costText(list.cost, 0);
}

const ways = { limiter: "Go to this limiter", thresholds: "Go to these thresholds" };

export function openKey(id) {
  document.title = "A key – rate limiters";
  say($("key-title"), "…");
  say($("key-looks"), "");
  for (const box of ["key-facts", "key-goes"]) $(box).replaceChildren();
  return whileSeen(3000, async (over) => {
    const key = await get("key?key=" + inQuery(id));
    if (over()) return;
    const title = key.name.length > 200 ? key.name.slice(0, 200) + "…" : key.name;
    if ($("key-title").textContent !== title) $("key-title").replaceChildren(nameNode(title));
    say($("key-looks"), key.looks);
    keyed($("key-facts"), [["Type", key.type], ...(key.ttl_ms === null ? [] : [["Expires in", duration(key.ttl_ms)]]), ...key.facts], ([title]) => title,
      ([title]) => el("div", { class: "fact" }, el("dt", {}, title), el("dd", { class: "figures" }, nameNode(""))),
      (node, [title, text]) => say(node.querySelector("bdi"), text));
    keyed($("key-goes"), key.goes, (way) => way, (way) => el("a", { href: "#/" + way + "/" + id }, ways[way]), () => {});
  }).end;
}

export function openThresholds(id, about) {
  document.title = "Thresholds – rate limiters";
  show($("threshold-new"), about.write);
  say($("thresholds-title"), "Thresholds");
  $("thresholds").tBodies[0].replaceChildren();
  let looking = null;
  const more = () => ({ hash: id, made: looking.now, typed: idOf });
  const button = (action, title, row) => el("button", { type: "button", "data-threshold": action, on: { click: () => openChange(action, row.item_, null, more()) } }, title);
  const makeRow = (item) => {
    const row = el("tr", { "data-id": item.id }, el("th", { scope: "row" }, nameNode(item.name)), el("td", { class: "n" }, nameNode("")), el("td", { class: "actions" }));
    if (about.write && item.id) row.lastElementChild.append(button("threshold", "Change", row), button("unthreshold", "Remove", row));
    return row;
  };
  looking = whileSeen(5000, async (over) => {
    let hash;
    try {
      hash = await get("thresholds?hash=" + inQuery(id));
    } catch (error) {
      if ((error.status === 409 || error.status === 403) && !over()) return say($("thresholds-note"), error.message);
      throw error;
    }
    if (over()) return undefined;
    if (!$("thresholds-title").querySelector("bdi")) $("thresholds-title").replaceChildren("Thresholds in ", nameNode(hash.hash.name));
    say($("thresholds-note"), (hash.thresholds.length === 0 ? "There are none: each log has its own limit. " : hash.more ? "There are more than these. " : "") +
      (hash.foreign > 0 ? exact(hash.foreign) + " fields hold no threshold and are no keys of such logs: they are not shown." : ""));
    keyed($("thresholds").tBodies[0], hash.thresholds, (item) => item.id || item.name, makeRow, (row, item) => {
      row.item_ = item;
      say(row.querySelector("td bdi"), item.threshold === null ? item.text : exact(item.threshold));
    });
    return undefined;
  });
  $("threshold-new").onclick = () => openChange("threshold", {}, null, more());
  return looking.end;
}

$("others-search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => change({ search: $("others-search").value, offset: 0 }), 250);
});
$("others-prev").addEventListener("click", () => change({ offset: Math.max(0, state.offset - rows) }));
$("others-next").addEventListener("click", () => change({ offset: state.offset + rows }));
$("others-controls").addEventListener("submit", (event) => event.preventDefault());
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("key-input").value !== "") location.hash = "#/key/" + idOf($("key-input").value);
});
