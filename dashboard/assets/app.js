// Which view is shown, and what all views have in common.
import { $, say, show } from "./dom.js";
import { connection, get, hasToken, setToken, unfollow } from "./api.js";
import * as limiters from "./limiters.js";
import * as limiter from "./limiter.js";
import * as others from "./others.js";
import * as audit from "./audit.js";
import { closeChange, tell } from "./change.js";

const views = [
  { hash: /^#\/limiter\/([\w-]+)$/, id: "limiter", nav: "limiters", open: limiter.open },
  { hash: /^#\/others$/, id: "others", nav: "others", open: others.open },
  { hash: /^#\/key\/([\w-]+)$/, id: "key", nav: "others", open: others.openKey },
  { hash: /^#\/thresholds\/([\w-]+)$/, id: "thresholds", nav: "others", open: others.openThresholds },
  { hash: /^#\/changes$/, id: "changes", nav: "changes", open: audit.open },
  { hash: /^(.*)/, id: "limiters", nav: "limiters", open: limiters.open },
];

let about = null;
let leave = null;

function route(moved) {
  const view = views.find((one) => one.hash.test(location.hash));
  leave?.();
  unfollow();
  closeChange();
  if (moved) tell();
  for (const one of views) show($("view-" + one.id), one === view);
  for (const link of document.querySelectorAll("[data-nav]")) {
    if (link.dataset.nav === view.nav) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  say($("cost"), "");
  leave = view.open(location.hash.match(view.hash)[1], about) ?? null;
  if (moved) {
    scrollTo(0, 0);
    $("view-" + view.id).querySelector("h2").focus({ preventScroll: true });
  }
}

function locks() {
  show($("unlock"), about.write && !about.allowed);
  show($("lock"), about.write && about.allowed && hasToken());
  document.documentElement.dataset.write = about.write ? (about.allowed ? "open" : "locked") : "no";
}

// learn asks what there is, until the server answers.
async function learn() {
  for (;;) {
    try {
      about = await get("about");
      if (hasToken() && !about.allowed) setToken("");
      say($("server"), about.server);
      locks();
      return;
    } catch (error) {
      connection("down", error.message);
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}

// unlock asks for the token, and then goes on with what needs it.
let afterwards = null;
export function unlock(then) {
  if (about.allowed) return then?.();
  afterwards = then ?? null;
  $("token").value = "";
  show($("token-error"), false);
  $("token-dialog").showModal();
}

$("unlock").addEventListener("click", () => unlock());
$("lock").addEventListener("click", () => {
  setToken("");
  about.allowed = false;
  locks();
  $("unlock").focus();
});
$("token-cancel").addEventListener("click", () => $("token-dialog").close());
$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  setToken($("token").value.trim());
  let wrong = "This is not the token.";
  try {
    about = { ...about, ...(await get("about")) };
  } catch (error) {
    wrong = error.message;
  }
  if (!about.allowed) {
    setToken("");
    say($("token-error"), wrong);
    show($("token-error"), true);
    $("token").focus();
    return;
  }
  locks();
  $("token-dialog").close();
  afterwards?.();
});
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
addEventListener("unlock-changes", (event) => unlock(event.detail));

// searches are where / goes, by view. From the others, which have no search, it goes to the list.
const searches = { limiters: "search", others: "others-search" };
let searching = false;

function search() {
  const view = views.find((one) => one.hash.test(location.hash));
  if (searches[view.id]) return $(searches[view.id]).focus();
  searching = true;
  location.hash = "#/";
}

// Keys that work everywhere but where text is typed. They act when they are let go: until then the letter
// may still be typed, into whatever has the focus.
const keys = { "/": search, "?": () => $("keys").showModal() };
let pressed = "";

addEventListener("keydown", (event) => {
  pressed = "";
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (!keys[event.key] || event.target.matches("select, input:not([type=checkbox])")) return;
  pressed = event.key;
  event.preventDefault();
});
addEventListener("keyup", () => {
  keys[pressed]?.();
  pressed = "";
});
$("keys-close").addEventListener("click", () => $("keys").close());

await learn(); // what views can't do without
addEventListener("hashchange", () => {
  route(true);
  if (searching) $("search").focus();
  searching = false;
});
route(false);
