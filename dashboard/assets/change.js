// The dialog of a change: what is wanted, then before and after, then it is made.
import { $, el, exact, fromUnit, inQuery, inUnit, nameNode, say, sharedBy, show, unitNames } from "./dom.js";
import { post } from "./api.js";

const dialog = $("change");
const titles = {
  rate: "Change the rate", default: "Use programs' default", expire: "Let a limiter expire", keep: "Keep a limiter for good", delete: "Delete a limiter", release: "Release permits", migrate: "Migrate",
  threshold: "Set a threshold", unthreshold: "Remove a threshold", undo: "Undo a change",
  rates: "Change the rate of many limiters",
};

// verbs are what the button says that makes the change; NAME is the limiter's, N how many change.
const verbs = {
  rate: "Change the rate", default: "Use the default", expire: "Let NAME expire", keep: "Keep NAME", delete: "Delete NAME", release: "Release permits", migrate: "Migrate NAME",
  threshold: "Set the threshold", unthreshold: "Remove the threshold", undo: "Undo",
  rates: "Change the rate of N",
};

let subject = null; // {action, id, name, more}
let asked = null; // the path and the body of the change that was shown
let made = null; // called after a change
let opened = 0; // counts dialogs, so that late answers reach no other one

const input = (title, name, value, attributes = {}) =>
  el("label", {}, title + " ", el("input", { type: "number", name, value, min: 1, step: 1, required: true, ...attributes }));

const amount = (title, name, ms, attributes = {}) => {
  const [count, unit] = inUnit(ms);
  const select = el("select", { name: name + "_unit", "aria-label": title + ", unit" }, ...unitNames.map((one) => el("option", { value: one }, one)));
  select.value = unit;
  return el("div", { class: "pair" }, input(title, name, ms === 0 ? 0 : count, { step: "any", ...attributes }), select);
};

const check = (title, name, checked) => el("label", { class: "check" }, el("input", { type: "checkbox", name, checked }), " " + title);

const note = (text) => el("p", { class: "faint" }, text);

// fields are the inputs of each action; what takes none begins with the preview.
const fields = {
  rate: (limiter) => {
    const select = el("select", { name: "type" }, ...Object.entries(sharedBy).map(([type, words]) => el("option", { value: type }, words)));
    select.value = limiter.type ?? "OVERALL";
    return [
      input("Permits", "rate", limiter.rate ?? 100), amount("Every", "interval", limiter.interval_ms ?? 1000),
      el("label", {}, "Shared by ", select), amount("Deleted when unused for (0: never)", "keep_alive", limiter.keep_alive_ms ?? 0, { min: 0 }),
      check("Keep the permits in use counted", "keep_state", true),
      limiter.rate ? amount("Only for (0: for good), with all else as it is", "span", 0, { min: 0 }) : null,
    ].filter(Boolean);
  },
  rates: (like) => [input("Permits", "rate", like.rate ?? 100), amount("Every", "interval", like.interval_ms ?? 1000)],
  expire: (limiter) => [amount("Expires in", "ttl", limiter.ttl_ms === null ? 3600000 : Math.max(1000, Math.round(limiter.ttl_ms / 1000) * 1000))],
  release: (limiter, client) => [
    client ? el("p", {}, "Of the client ", nameNode(client.name)) : null,
    limiter.type === "PER_CLIENT" && !client ? note("Each client has permits of its own: choose one in the table below.") : input("Permits", "permits", 1),
  ].filter(Boolean),
  threshold: (key) => [
    key.id ? null : el("label", {}, "Key ", el("input", { type: "text", name: "key", required: true, autocomplete: "off", spellcheck: "false" })),
    input("Threshold (0 refuses all)", "threshold", key.threshold ?? 100, { min: 0 }),
  ].filter(Boolean),
};

const value = (name) => $("change-form").elements.namedItem(name);
const count = (name) => Number(value(name).value);
const millis = (name) => fromUnit(count(name), value(name + "_unit").value);

// queries name what is changed, if it is not a limiter alone, and bodies say how.
const queries = {
  rates: () => "search=" + encodeURIComponent(subject.search),
  release: () => "name=" + inQuery(subject.id) + (subject.client ? "&client=" + inQuery(subject.client.id) : ""),
  threshold: () => "hash=" + inQuery(subject.hash) + "&key=" + inQuery(subject.id ?? subject.typed(value("key").value)),
  unthreshold: () => "hash=" + inQuery(subject.hash) + "&key=" + inQuery(subject.id),
  undo: () => "entry=" + subject.entry,
};
const bodies = {
  rate: () => {
    const change = bodies.rates();
    if (value("span") && count("span") > 0) return { ...change, for_ms: millis("span") };
    return { ...change, type: value("type").value, keep_alive_ms: millis("keep_alive"), keep_state: value("keep_state").checked };
  },
  rates: () => ({ rate: count("rate"), interval_ms: millis("interval") }),
  expire: () => ({ ttl_ms: millis("ttl") }),
  release: () => ({ permits: count("permits") }),
  threshold: () => ({ threshold: count("threshold") }),
};

// openChange opens the dialog. The item is a limiter, a key with a threshold, or an
// entry of the list of changes.
export function openChange(action, item, client, more = {}) {
  dispatchEvent(new CustomEvent("unlock-changes", { detail: () => begin(action, item, client, more) }));
}

function begin(action, item, client, more) {
  opened++;
  subject = { action, id: item.id, client, hash: more.hash, entry: more.entry, search: more.search, typed: more.typed };
  made = more.made;
  asked = null;
  say($("change-title"), titles[action]);
  $("change-name").replaceChildren(...(item.name ? [nameNode(item.name.length > 400 ? item.name.slice(0, 400) + "…" : item.name)] : []));
  $("change-progress").value = 0;
  say($("change-count"), "");
  $("change-failures").replaceChildren();
  $("change-fields").replaceChildren(...(fields[action]?.(item, client) ?? []));
  const server = $("server").textContent;
  say($("change-server"), "at " + server);
  show($("change-server"), server !== "");
  step("edit");
  fail("");
  dialog.showModal();
  if (!fields[action]) review();
  else if (action === "release" && value("permits") === null) show($("change-review"), false);
}

export function closeChange() {
  if (dialog.open) dialog.close();
}

function step(which) {
  dialog.dataset.step = which;
  const confirming = which === "confirm";
  const making = which === "make";
  show($("change-fields"), which === "edit");
  show($("change-confirming"), confirming);
  show($("change-review"), which === "edit");
  show($("change-making"), making);
  show($("change-on"), false);
  say($("change-cancel"), making ? "Stop" : "Cancel");
  show($("change-confirm"), confirming);
  show($("change-back"), confirming && Boolean(fields[subject.action]));
}

function fail(text) {
  say($("change-error"), text);
  show($("change-error"), text !== "");
}

function busy(is) {
  for (const id of ["change-review", "change-confirm", "change-back"]) $(id).disabled = is;
}

function problem(error) {
  fail(error.status === 401 ? "The token is no longer valid: unlock changes again." : error.message);
}

async function review() {
  const invalid = [...$("change-fields").querySelectorAll("input")].find((one) => !one.checkValidity());
  if (invalid) {
    fail(invalid.validationMessage);
    invalid.focus();
    return;
  }
  const path = subject.action + "?" + (queries[subject.action]?.() ?? "name=" + inQuery(subject.id));
  const body = bodies[subject.action]?.() ?? {};
  const mine = opened;
  busy(true);
  fail("");
  try {
    const preview = await post("preview/" + path, body);
    if (mine !== opened || !dialog.open) return;
    asked = ["change/" + path, { ...body, expect: preview.expect }];
    compare(preview.before, preview.after, preview.first ?? []);
    const rest = (preview.todo ?? 0) - (preview.first ?? []).length;
    show($("compare-more"), rest > 0);
    say($("compare-more"), "and " + exact(rest) + " more");
    const name = preview.limiter.name;
    $("change-confirm").replaceChildren(nameNode(verbs[subject.action].replace(/N$/, () => exact(preview.todo)).replace("NAME", () => (name.length > 30 ? name.slice(0, 30) + "…" : name))));
    const deletes = subject.action === "delete" || subject.action === "unthreshold";
    $("change-confirm").classList.toggle("danger", deletes);
    $("change-name").replaceChildren(nameNode(preview.limiter.name));
    $("change-warnings").replaceChildren(...preview.warnings.map((text) => el("li", {}, text)));
    step("confirm");
    busy(false);
    $(deletes ? "change-cancel" : "change-confirm").focus();
  } catch (error) {
    if (mine === opened) problem(error);
  } finally {
    if (mine === opened) busy(false);
  }
}

// compare shows facts side by side, and marks those that change. More are rows of their own.
function compare(before, after, more) {
  const old = new Map(before);
  const fresh = new Map(after);
  const rows = [...new Set([...old.keys(), ...fresh.keys()])].map((title) => [title, old.get(title), fresh.get(title)]);
  $("compare").tBodies[0].replaceChildren(...[...rows, ...more].map(([title, was, will]) =>
    el("tr", { class: was === will ? null : "differs" }, el("th", { scope: "row" }, nameNode(title)),
      ...[was, will].map((text) => el("td", {}, nameNode(text ?? "–"))))));
}

// makeAll changes many limiters, some with each request, until all are done, one request fails
// or the dialog is closed. What was not tried can be gone on with.
async function makeAll() {
  const mine = opened;
  step("make");
  fail("");
  say($("change-result"), "");
  $("change-cancel").focus();
  for (let left = 1; left > 0;) {
    let all;
    try {
      all = await post(...asked);
    } catch (error) {
      if (mine !== opened || !dialog.open) return;
      problem(error);
      say($("change-cancel"), "Close");
      show($("change-on"), error.status !== 409);
      return;
    }
    left = all.left;
    const count = exact(all.changed) + " of " + exact(all.todo) + " changed, " + exact(all.failed) + " failed";
    if (mine !== opened) return;
    if (!dialog.open) {
      if (left > 0) return tell("Stopped: " + count + ". Run it again for the rest.");
      return tell("Done: " + count + ", entry " + exact(all.entry.entry) + " of the changes.");
    }
    $("change-progress").value = (all.todo - left) / all.todo;
    say($("change-count"), count);
    if (left > 0) continue;
    const kept = (all.gone > 0 ? ", " + exact(all.gone) + " were deleted meanwhile" : "") +
      (all.meanwhile > 0 ? ", " + exact(all.meanwhile) + " got another rate meanwhile and keep it" : "");
    say($("change-result"), "Done: " + count + kept + ", entry " + exact(all.entry.entry) + " of the changes.");
    $("change-failures").replaceChildren(...all.failures.map((one) => el("li", {}, nameNode(one.name), ": " + one.error)));
    say($("change-cancel"), "Close");
  }
}

async function confirm() {
  if (subject.action === "rates") return makeAll();
  const mine = opened;
  busy(true);
  fail("");
  try {
    const { entry } = await post(...asked);
    if (mine !== opened) return;
    dialog.close();
    tellDone(entry);
    made?.(entry);
  } catch (error) {
    if (mine !== opened) return;
    if (error.status === 409 && fields[subject.action]) step("edit");
    problem(error);
  } finally {
    if (mine === opened) busy(false);
  }
}

let telling = 0;

// tell says what became of a change, until another page is shown or some seconds are over: more, if it
// can be undone.
export function tell(...content) {
  clearTimeout(telling);
  $("told").replaceChildren(...content);
  telling = setTimeout(() => $("told").replaceChildren(), content.length > 1 ? 30000 : 8000);
}

function tellDone(entry) {
  const rate = (facts) => new Map(facts ?? []).get("Rate");
  const [before, after] = [rate(entry.before), rate(entry.after)];
  if (before === undefined || after === undefined || before === after || !["rate", "undo"].includes(entry.action)) {
    return tell("Done: " + titles[entry.action].toLowerCase() + ", entry " + exact(entry.entry) + " of the changes.");
  }
  const name = [...entry.limiter.name];
  const text = ["Rate of ", nameNode(name.length > 60 ? name.slice(0, 60).join("") + "…" : entry.limiter.name), ": " + before + " → " + after + ". "];
  if (!entry.undo) return tell(...text);
  tell(...text, el("button", { type: "button", id: "told-undo", on: { click: () => openChange("undo", entry.limiter, null, { entry: entry.entry }) } }, "Undo"));
}

$("change-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (dialog.dataset.step === "edit") review();
});
$("change-confirm").addEventListener("click", confirm);
$("change-on").addEventListener("click", makeAll);
$("change-back").addEventListener("click", () => {
  step("edit");
  fail("");
  $("change-fields").querySelector("input")?.focus();
});
$("change-cancel").addEventListener("click", () => dialog.close());
