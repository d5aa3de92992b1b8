// Starts the page: finds the server, then the two views, the dialogs and the keys that work everywhere.

import { ApiError, health, servedModel } from "./api.js";
import { Chat } from "./chat.js";
import { byId, button, el } from "./dom.js";
import { problemBox } from "./problems.js";
import { Race } from "./race.js";
import { modesOf, Settings } from "./settings.js";
import { keepKey, keepTheme, theme } from "./store.js";

const PAUSE = 2000; // milliseconds between looks at a server that is not ready
const WAITING = {
  loading: "The server is loading its model; the page goes on by itself.",
  restarting: "The server's engine failed and is being started again; the page goes on by itself.",
  stopping: "The server is stopping. Start it again with “unmask serve”; the page goes on by itself.",
  stopped: "The server has stopped. Start it again with “unmask serve”; the page goes on by itself.",
  down: "The server's engine failed again and again. Look at its log and start it again with “unmask serve”.",
};
const THEMES = ["auto", "light", "dark"];

let later = null;
let afterKey = () => {};
const app = { model: null, start, askKey, notice };

function notice(text, label = null, action = null) {
  const act = () => {
    byId("notice").replaceChildren();
    action();
  };
  byId("notice").replaceChildren(el("p", {}, text, label ? button(label, act, { class: "quiet" }) : null));
}

/** Asks the server what it serves; says what to do where it cannot be had. */
async function start() {
  const box = byId("banner");
  try {
    const state = await health();
    if (!state) throw new ApiError("nothing answered");
    if (state.status in WAITING) {
      box.replaceChildren(el("p.problem", { role: "status" }, WAITING[state.status]));
      clearTimeout(later);
      later = setTimeout(start, PAUSE);
      return;
    }
    app.model = await servedModel();
  } catch (fault) {
    byId("model").textContent = "no model";
    box.replaceChildren(problemBox(fault, { retry: start, askKey: () => askKey() }));
    window.scrollTo({ top: 0 });
    return;
  }
  box.replaceChildren();
  const more = app.model.unmask;
  byId("model").textContent = app.model.id;
  byId("model").title = more?.block_size ? `blocks of ${more.block_size}; modes ${modesOf(app.model).join(", ")}` : "a plain model: mode ar only";
  settings.fit(app.model);
  race.fit(app.model);
}

/** then: called with nothing once a key has been entered and the server answers. */
function askKey(then = () => {}) {
  afterKey = then;
  byId("key").value = "";
  byId("key-dialog").showModal();
}

byId("key-form").addEventListener("submit", async () => {
  keepKey(byId("key").value.trim());
  await start();
  if (app.model) afterKey();
});

/** Which view: the address behind # says it, so that links and the back button work. */
function show() {
  if (!["", "#chat", "#race"].includes(location.hash)) return;
  const racing = location.hash === "#race";
  byId("chat-view").hidden = racing;
  byId("race-view").hidden = !racing;
  byId("to-chat").setAttribute("aria-current", racing ? "false" : "page");
  byId("to-race").setAttribute("aria-current", racing ? "page" : "false");
  document.title = racing ? "unmask: race" : "unmask: chat";
}

function nameTheme() {
  byId("theme").textContent = { auto: "◐", light: "☀", dark: "☾" }[theme()];
  byId("theme").setAttribute("aria-label", `Theme: ${theme()}`);
  byId("theme").title = `Theme: ${theme()}`;
}

byId("theme").addEventListener("click", () => {
  keepTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  nameTheme();
});
byId("open-settings").addEventListener("click", () => settings.open());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  chat.stop();
  race.stop();
});
window.addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address keeps saying which view it is
  byId("main").focus();
});

const race = new Race(app);
const settings = new Settings(() => race.describe());
const chat = new Chat(app);
nameTheme();
show();
start();
