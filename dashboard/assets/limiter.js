// One RateLimiter: what Redis holds of it, and what became of it since the page is open.
import { $, duration, el, exact, inQuery, keyed, nameNode, number, pace, percent, rate, say, sharedBy, show, stateText } from "./dom.js";
import { follow } from "./api.js";
import { bands, bars } from "./plot.js";
import { costText } from "./limiters.js";
import { openChange } from "./change.js";

const parts = 60; // of the coming interval, as the server adds it up
const kept = 300; // points of the history, one a second

const facts = [["in-use", "In use"], ["granted", "Granted/s"], ["refused", "Refused/s"]];
const settings = [["rate", "Rate"], ["origin", "Origin"], ["type", "Shared by"], ["keep-alive", "Deleted when unused for"], ["ttl", "Expires in"], ["clients", "Clients"]];

const actions = [
  ["rate", "Change rate"], ["default", "Use default"], ["release", "Release permits"], ["expire", "Let expire"], ["keep", "Keep for good"], ["migrate", "Migrate"], ["delete", "Delete"],
];

let last = null;
let points = [];
let write = false;
let drawReturns = null;
let drawHistory = null;

function originText({ origin, ends, at }) {
  if (!ends) return origin ?? null;
  const [end, then] = [new Date(ends.at_ms), rate(ends.rate, ends.interval_ms)];
  const left = Math.max(0, end - new Date(at));
  return `${origin} until ${end.toLocaleString(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit" })} (in ${duration(left)}), then ${then}`;
}

export function open(id, about) {
  write = about.write;
  points = [];
  last = null;
  say($("limiter-name"), "…");
  show($("limiter-whole"), false);
  show($("limiter-body"), false);
  show($("limiter-gone"), false);
  for (const [list, all] of [["facts", facts], ["settings", settings]]) {
    $(list).replaceChildren(...all.map(([key, title]) => el("div", { class: "fact" }, el("dt", {}, title), el("dd", { "data-fact": key, class: "figures" }, "–"))));
  }
  $("actions").replaceChildren(...actions.map(([action, title]) =>
    el("button", { type: "button", "data-action": action, on: { click: () => last && openChange(action, last) } }, title)));
  for (const table of ["holders", "states"]) $(table).tBodies[0].replaceChildren();
  $("anomalies").replaceChildren();
  drawReturns = bars($("returns"), "returns-plot", parts);
  drawHistory = bands($("history"), "history-plot", [["free"], ["granted", "refused"]], [0.6, 0.4]);
  document.title = "Limiter";
  follow("limiter/stream?name=" + inQuery(id), { limiter: update });
}

// fact says a figure; what says nothing, null, is not there.
function fact(key, text) {
  const node = $("limiter-body").querySelector(`dd[data-fact="${key}"]`);
  show(node.parentElement, text !== null);
  if (text !== null) say(node, text);
}

// lead says first what somebody asks who is called at night: how many are free, and if
// none is, when the next one is, since when, and how many must come back before.
function lead(limiter) {
  const known = limiter.free !== null && !limiter.broken;
  $("lead").dataset.state = limiter.state ?? "";
  say($("lead-free"), limiter.broken ? stateText(limiter.state) : number(limiter.free));
  say($("lead-of"), known ? "of " + number(limiter.rate) + " free" : "");
  say($("lead-state"), limiter.broken ?? stateText(limiter.state));
  const next = soonest(limiter.states.map((state) => state.next_permit_ms));
  const since = soonest(limiter.states.map((state) => state.used_up_ms));
  const parts = [];
  if (limiter.state === "used up" && next !== null) parts.push("next permit in " + duration(next));
  if (limiter.state === "used up" && since !== null) parts.push("none granted for up to " + duration(since));
  const cure = limiter.anomalies.find((item) => item.level === "error");
  if (limiter.broken && cure) parts.push("What to do: " + cure.advice + ".");
  const debt = limiter.states.reduce((sum, state) => sum + (state.debt ?? 0), 0);
  if (debt > 0) parts.push("debt " + number(debt));
  say($("lead-next"), parts.join(", "));
}

const soonest = (all) => all.reduce((least, one) => ((one ?? null) === null || (least !== null && least <= one) ? least : one), null);

function update(limiter) {
  const first = last === null;
  last = limiter;
  if (first) {
    const short = [...limiter.name];
    const long = short.length > 80;
    $("limiter-name").replaceChildren(nameNode(long ? short.slice(0, 60).join("") + "…" : limiter.name));
    show($("limiter-whole"), long);
    $("limiter-whole").querySelector("summary").textContent = "The whole name, " + exact(limiter.bytes) + " bytes";
    $("limiter-whole").querySelector("p").replaceChildren(nameNode(limiter.name));
    document.title = (long ? short.slice(0, 40).join("") + "…" : limiter.name) + " – rate limiter";
  }
  const other = limiter.anomalies.find((item) => item.kind === "not_ours");
  say($("limiter-gone"), other ? other.text[0].toUpperCase() + other.text.slice(1) + "." : "There is no such limiter now.");
  show($("limiter-gone"), !limiter.exists);
  show($("limiter-body"), limiter.exists);
  show($("actions"), write && limiter.exists);
  costText(limiter.cost, 0);
  keep(limiter);
  if (!limiter.exists) return;
  const perClient = limiter.type === "PER_CLIENT";
  const known = limiter.rate !== null;
  lead(limiter);
  const told = limiter.free !== null;
  for (const box of ["holders-box", "figures-box"]) show($(box), told);
  fact("in-use", told ? number(limiter.in_use) : null);
  fact("granted", told ? pace(limiter.granted_per_second) : null);
  fact("refused", limiter.refused === null ? null : pace(limiter.refused_per_second) + " (" + exact(limiter.refused) + " so far)");
  fact("rate", !known ? "can't be read" : rate(limiter.rate, limiter.interval_ms));
  fact("origin", originText(limiter));
  fact("type", limiter.type === null ? null : sharedBy[limiter.type]);
  fact("keep-alive", limiter.keep_alive_ms ? duration(limiter.keep_alive_ms) : null);
  fact("ttl", known && limiter.ttl_ms !== null ? duration(limiter.ttl_ms) : null);
  fact("clients", perClient ? exact(limiter.clients) : null);
  $("actions").querySelector("[data-action=default]").disabled = limiter.origin !== "override";
  $("actions").querySelector("[data-action=keep]").disabled = limiter.ttl_ms === null;
  updateAnomalies(limiter);
  updateReturns(limiter);
  updateHolders(limiter);
  updateStates(limiter);
}

function updateAnomalies(limiter) {
  show($("anomalies-box"), limiter.anomalies.length > 0);
  keyed($("anomalies"), limiter.anomalies, (item) => item.kind + " " + item.level, (item) => {
    const node = el("li", { "data-kind": item.kind, "data-level": item.level });
    node.append(el("strong", {}, item.level + ": "), el("span", { class: "what" }), el("div", {}, "Why: " + item.reason + "."), el("div", {}, "What to do: " + item.advice + "."));
    return node;
  }, (node, item) => say(node.querySelector(".what"), item.text));
}

function updateReturns(limiter) {
  const sums = new Array(parts).fill(0);
  let all = 0;
  let wholly = true;
  for (const state of limiter.states) {
    state.returns.forEach((permits, i) => (sums[i] += permits));
    wholly &&= state.whole;
  }
  for (const permits of sums) all += permits;
  const interval = duration(limiter.interval_ms);
  const firstAt = sums.findIndex((permits) => permits > 0);
  drawReturns(sums, {
    left: "now",
    right: "in " + interval,
    top: limiter.broken ? "not known" : all === 0 ? "nothing is in use" : "up to " + number(Math.max(...sums)) + " permits at a time" + (wholly ? "" : ", of those that were read"),
    spoken: limiter.broken ? "It is not known when permits come back." : all === 0 ? "Nothing is in use, so nothing comes back." :
      exact(all) + " permits come back within " + interval + ", the first in about " + duration((firstAt * limiter.interval_ms) / parts) + ".",
  });
}

function holdersOf(limiter) {
  const sums = new Map();
  for (const state of limiter.states) {
    const all = state.client === null ? state.holders : [{ kind: "client", who: state.client_name || state.client.name, permits: state.in_use, back_in_ms: soonest(state.permits.map((one) => one.back_in_ms)) }];
    for (const holder of all) {
      const who = {
        named: holder.who, client: holder.who, redisson: "Redisson", unmarked: "clients that leave no mark",
        unnamed: "a client without a name, " + (holder.mark ?? "").slice(0, 8),
      }[holder.kind];
      const sum = sums.get(who) ?? { who, permits: 0, back: null };
      if (holder.permits > 0) sums.set(who, { who, permits: sum.permits + holder.permits, back: soonest([sum.back, holder.back_in_ms]) });
    }
  }
  return [...sums.values()].sort((a, b) => b.permits - a.permits || (a.who < b.who ? -1 : 1));
}

function updateHolders(limiter) {
  const all = holdersOf(limiter);
  const sum = all.reduce((sum, one) => sum + one.permits, 0);
  keyed($("holders").tBodies[0], all, (one) => one.who, (one) => el("tr", {}, el("th", { scope: "row" }, nameNode(one.who)), ...[1, 2, 3].map(() => el("td", { class: "n" }))), (row, one) => {
    say(row.children[1], exact(one.permits));
    say(row.children[2], percent(one.permits / sum));
    say(row.children[3], one.back === null ? "not known" : duration(one.back));
  });
  show($("holders"), all.length > 0);
  show($("holders-none"), all.length === 0 && !limiter.broken);
  show($("names-error"), Boolean(limiter.names_error));
  say($("names-error"), limiter.names_error ? "The names of clients are not known: " + limiter.names_error : "");
}

function updateStates(limiter) {
  keyed($("states").tBodies[0], limiter.states, (state) => state.client?.id ?? "all", (state) => {
    const row = el("tr", {}, el("th", { scope: "row" }, state.client === null ? sharedBy.OVERALL : nameNode(state.client_name || state.client.name)),
      ...[1, 2, 3].map(() => el("td", { class: "n" })), el("td", {}));
    if (write && state.client !== null) {
      row.lastElementChild.append(el("button", { type: "button", "data-client": state.client.id, on: { click: () => openChange("release", last, state.client) } }, "Release"));
    }
    return row;
  }, (row, state) => {
    say(row.children[1], number(state.free));
    say(row.children[2], number(limiter.broken && state.free === null ? null : state.in_use));
    say(row.children[3], exact(state.members) + (state.window ? " (a fixed window of a Redisson before 3.13.3)" :
      state.merged ? ", " + exact(state.merged) + " of them merged: up to " + duration(state.late_ms) + " late" : ""));
  });
  const more = limiter.clients - limiter.states.length;
  show($("states-more"), limiter.type === "PER_CLIENT");
  say($("states-more"), limiter.type !== "PER_CLIENT" ? "" : more > 0 ? "and " + exact(more) + " clients more" :
    limiter.states.length === 0 ? "No client was met yet: the keys are walked for them." : "Free permits above are those of the client with the fewest.");
}

// keep adds to the history, which begins when the page is opened.
function keep(limiter) {
  const at = Date.now();
  if (points.length > 0 && at - points[points.length - 1].at > 5000) points.push({ at: at - 1 }); // a gap
  const told = limiter.free !== null && limiter.exists;
  const before = points.findLast((point) => point.setting !== undefined);
  const setting = limiter.rate === null ? undefined : rate(limiter.rate, limiter.interval_ms);
  points.push({
    at, setting, mark: before !== undefined && setting !== undefined && before.setting !== setting,
    free: told ? limiter.free : null, granted: told ? limiter.granted_per_second : null, refused: limiter.refused_per_second,
  });
  points = points.slice(-kept);
  const span = Math.max(60000, Math.min(kept * 1000, at - points[0].at));
  const paces = Math.max(1, ...points.map((point) => Math.max(point.granted ?? 0, point.refused ?? 0)));
  const free = Math.max(limiter.rate ?? 1, 1, ...points.map((point) => point.free ?? 0));
  drawHistory(points, span, [free, paces], {
    left: duration(span) + " ago",
    right: "now",
    highest: [number(free) + " free", pace(paces) + "/s"],
    top: "Above: free permits. Below: granted" + (limiter.refused === null ? "" : " and ┈ refused") + " a second" + (points.some((point) => point.mark) ? "; ┊ the rate was changed" : ""),
    spoken: limiter.broken ? "Calls fail: " + limiter.broken + "." : "Free permits now " + number(limiter.free) + " of " + number(free) + "; granted a second now " + pace(limiter.granted_per_second) + ", at most " + pace(paces) + " in the time shown.",
  });
}
