// Asks the server: once, or for a stream that heals itself.
import { $, say, show } from "./dom.js";

const silence = 6000; // after so many ms without an event, something is wrong
const again = 2000;

let token = "";
try {
  token = sessionStorage.getItem("token") ?? "";
} catch {
  // A browser without storage asks again after a reload.
}

export function setToken(text) {
  token = text;
  try {
    if (text === "") sessionStorage.removeItem("token");
    else sessionStorage.setItem("token", text);
  } catch {
    // The same.
  }
}

export const hasToken = () => token !== "";

// A header of its own leaves Authorization to what the browser was given for looking.
const headers = (more) => (token === "" ? more : { ...more, "Dashboard-Token": token });

async function answer(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // Not from this server.
  }
  if (!response.ok) {
    const error = new Error(body.detail || body.title || "The server answered " + response.status + ".");
    error.status = response.status;
    throw error;
  }
  return body;
}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new Error("The server of this page does not answer.");
  }
  return answer(response);
}

export const get = (path) => ask("api/" + path, { headers: headers({}), cache: "no-store" });

export const post = (path, body) =>
  ask("api/" + path, { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) });

let current = null;
let heard = null; // when the last figures came

export function connection(state, why) {
  if (state === "live") heard = new Date();
  document.documentElement.dataset.connection = state;
  say($("connection"), { live: "live", connecting: "connecting", down: "no data" }[state]);
  if (state === "down") {
    say($("banner"), why + (heard === null ? " No data came yet" : " Stale data since " + heard.toLocaleTimeString()) + ", reconnecting.");
    say($("cost"), "");
  }
  show($("banner"), state === "down");
}

// follow opens the stream of a path, in place of the one before. Handlers are called
// with what the events of their names hold.
export function follow(path, handlers) {
  unfollow();
  const mine = { source: null, watch: 0, retry: 0 };
  current = mine;
  const lost = (why) => {
    if (current !== mine) return;
    connection("down", why);
    mine.pause();
    mine.retry = setTimeout(open, again);
  };
  const alive = () => {
    clearTimeout(mine.watch);
    mine.watch = setTimeout(() => lost("The server of this page is silent."), silence);
  };
  const open = () => {
    if (current !== mine) return;
    mine.source = new EventSource("api/" + path);
    for (const [name, handler] of Object.entries(handlers)) {
      mine.source.addEventListener(name, (event) => {
        if (current !== mine) return;
        alive();
        connection("live");
        handler(JSON.parse(event.data));
      });
    }
    mine.source.addEventListener("fault", (event) => {
      if (current !== mine) return;
      alive();
      connection("down", JSON.parse(event.data).message + ".");
    });
    mine.source.addEventListener("error", async () => {
      let why = "The server of this page does not answer.";
      if (mine.source.readyState === EventSource.CLOSED) { // it answered, but not by a stream
        try {
          await get(path.replace("/stream", ""));
        } catch (error) {
          why = error.status ? error.message + "." : error.message;
        }
      }
      lost(why);
    });
    alive();
  };
  mine.open = open;
  mine.pause = () => {
    clearTimeout(mine.watch);
    clearTimeout(mine.retry);
    mine.source?.close();
  };
  if (!document.hidden) open();
}

// A hidden page asks for nothing: the server has better to do, and a browser
// opens six connections to it at most.
document.addEventListener("visibilitychange", () => {
  if (current === null) return;
  if (document.hidden) current.pause();
  else current.open();
});

// whileSeen calls look again and again, but not while the page is hidden; look is told
// how to see whether it was ended meanwhile. It returns what ends it.
export function whileSeen(every, look) {
  let timer = 0;
  let over = false;
  const again = async () => {
    clearTimeout(timer);
    if (!document.hidden && !document.querySelector("dialog[open]")) {
      try {
        await look(() => over);
        if (!over) connection("live");
      } catch (error) {
        if (!over) connection("down", error.message);
      }
    }
    if (!over) timer = setTimeout(again, every);
  };
  again();
  return {
    now: again,
    end: () => {
      over = true;
      clearTimeout(timer);
    },
  };
}

export function unfollow() {
  if (current === null) return;
  current.pause();
  current = null;
}
