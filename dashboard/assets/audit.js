// The list of changes.
import { $, el, keyed, nameNode, say, show, time } from "./dom.js";
import { get, whileSeen } from "./api.js";
import { openChange } from "./change.js";

const changed = (entry) => {
  const before = new Map(entry.before ?? []);
  return (entry.after ?? []).filter(([title, text]) => before.get(title) !== text)
    .map(([title, text]) => (title.toLowerCase() === entry.action ? "" : title + ": ") + (before.get(title) ?? "–") + " → " + text).join("; ");
};

export function open(_, about) {
  document.title = "Changes – rate limiters";
  const looking = whileSeen(3000, async (over) => {
    const { entries } = await get("audit");
    if (over()) return;
    show($("audit"), entries.length > 0);
    show($("audit-empty"), entries.length === 0);
    keyed($("audit").tBodies[0], entries, (entry) => String(entry.entry), (entry) => makeRow(entry, () => looking.now()), (row, entry) => {
      const what = changed(entry);
      if (row.querySelector(".what").textContent !== what) row.querySelector(".what").replaceChildren(nameNode(what));
      say(row.querySelector(".outcome"), entry.outcome + (entry.error ? ": " + entry.error : "") + (entry.undone ? ", undone by entry " + entry.undone : ""));
      show(row.querySelector("button"), about.write && entry.undo);
    });
  });
  return looking.end;
}

function makeRow(entry, look) {
  const name = nameNode(entry.limiter.name);
  return el("tr", { "data-entry": entry.entry },
    el("td", { class: "figures" }, el("time", { datetime: entry.at }, time(entry.at))),
    el("td", {}, nameNode(entry.who)),
    el("td", {}, entry.limiter.id && !entry.action.includes("threshold") ? el("a", { href: "#/limiter/" + entry.limiter.id }, name) : name),
    el("td", {}, el("strong", {}, entry.action), " ", el("span", { class: "what" })),
    el("td", { class: "outcome" }),
    el("td", {}, el("button", { type: "button", "data-undo": entry.entry, hidden: true,
      on: { click: () => openChange("undo", entry.limiter, null, { entry: entry.entry, made: look }) } }, "Undo")));
}
