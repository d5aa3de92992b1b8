// The conversation: ask, stop, try again; kept in the browser as it goes.

import { againButton, Answer, watchAgain } from "./answer.js";
import { complete } from "./api.js";
import { ChatList } from "./chatlist.js";
import { byId, button, el } from "./dom.js";
import { figuresOf } from "./figures.js";
import { legend, picture, SENTENCE } from "./intro.js";
import { Announcer } from "./live.js";
import { drain, problemBox } from "./problems.js";
import { current, requestOf } from "./settings.js";
import { chats, keepChat, newChat } from "./store.js";
import { Prose } from "./text.js";

const EXAMPLES = [
  "Explain in a few sentences why the sky is blue.",
  "Write a Python function that checks whether a string is a palindrome.",
  "Omar earns 15 dollars an hour and works 8 hours a day. How much does he earn in 5 days?",
];
const NEAR = 120; // pixels from the end within which the page follows the text

export class Chat {
  constructor(app) {
    this.app = app;
    this.log = byId("messages");
    this.input = byId("question");
    this.act = byId("send");
    this.announcer = new Announcer(byId("spoken"));
    this.list = new ChatList({ open: (chat) => this.open(chat), deleted: (id) => this.gone(id), notice: app.notice });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.run) this.stop();
      else this.ask(this.input.value);
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.run) this.ask(this.input.value);
    });
    this.open(chats()[0] ?? null, false);
  }

  open(chat, focus = true) {
    this.stop();
    this.chat = chat ?? newChat();
    this.show();
    if (this.chat.messages.at(-1)?.role === "user") this.log.append(this.foot({ last: true }));
    this.list.show(this.chat.id);
    if (focus) this.input.focus({ preventScroll: true });
  }

  gone(id) {
    if (id !== this.chat.id) return;
    this.chat.gone = true;
    this.open(null);
  }

  show() {
    const { messages } = this.chat;
    const shown = messages.map((message, n) => this.message(message, n === messages.length - 1));
    this.log.replaceChildren(...(shown.length ? shown : [this.welcome()]));
    window.scrollTo({ top: shown.length ? document.body.scrollHeight : 0 });
  }

  welcome() {
    const examples = EXAMPLES.map((text) => el("li", {}, button(text, () => this.ask(text), { class: "example" })));
    return el(
      "section.welcome",
      { "aria-label": "About this page" },
      el("h1", {}, "Watch a model write"),
      el("p.lead", {}, SENTENCE),
      picture(),
      legend(),
      el("ul.examples", { "aria-label": "Examples" }, ...examples),
    );
  }

  message({ role, content, figures, reason, stopped }, last) {
    const prose = new Prose();
    prose.show(content);
    if (role === "user") return frame("user", "You", prose.element);
    const after = [figures ? figuresOf(figures, reason) : null, this.foot({ stopped, last })];
    return frame("assistant", "The model", prose.element, ...after.filter((node) => node));
  }

  /** What stands under an answer: that it was stopped, and what can be done. */
  foot({ stopped, last, again = null }) {
    const parts = [stopped ? el("span", {}, "Stopped.") : null, last ? button("Retry", () => this.retry(), { class: "quiet" }) : null, again];
    return el("p.foot", {}, ...parts.filter((part) => part));
  }

  async ask(text) {
    if (!text.trim() || this.run) return;
    if (!this.app.model) await this.app.start();
    if (!this.app.model || this.run) return;
    this.input.value = "";
    const { messages } = this.chat;
    if (!messages.length) this.chat.title = text.trim().slice(0, 60);
    messages.push({ role: "user", content: text });
    this.answer();
  }

  /** Asks the last question again, with the settings of now. */
  async retry() {
    if (!this.app.model) await this.app.start();
    if (!this.app.model || this.run) return;
    const { messages } = this.chat;
    if (messages.at(-1)?.role === "assistant") messages.pop();
    if (messages.length) this.answer();
  }

  async answer() {
    const { chat, app } = this;
    this.keep(chat);
    this.show();
    const run = new AbortController();
    this.busy(run);
    const chosen = current();
    const request = requestOf(chosen, app.model, chat.messages);
    const part = request.mode === "threshold" ? (app.model.unmask?.sub_block_size ?? 0) : 0;
    const answer = new Answer({ part, blocks: chosen.blocks });
    const article = frame("assistant", "The model", answer.element, chosen.blocks ? el("div.beside", {}, legend()) : null);
    this.log.append(article);
    this.announcer.start();
    const fault = await drain(complete(request, run.signal), (event) => this.take(answer, event));
    this.announcer.end();
    article.querySelector(".beside")?.remove();
    this.finish(chat, answer, fault);
    if (this.run === run) this.busy(null);
  }

  take(answer, event) {
    const { scrollHeight } = document.documentElement;
    const follows = scrollHeight - window.scrollY - window.innerHeight < NEAR;
    answer.take(event);
    if (event.kind === "text") this.announcer.add(event.text);
    if (follows) requestAnimationFrame(() => window.scrollTo({ top: document.documentElement.scrollHeight }));
  }

  finish(chat, answer, fault) {
    const stopped = fault === "stopped";
    if (answer.text) {
      const { text: content, figures, reason } = answer;
      chat.messages.push({ role: "assistant", content, figures, reason, stopped: stopped || Boolean(fault) });
      this.keep(chat);
    }
    const again = answer.trace.current ? againButton(() => this.again(answer)) : null;
    const problem = fault && !stopped ? this.problem(fault) : null;
    answer.end([problem ?? this.foot({ stopped, last: true, again })]);
  }

  problem(fault) {
    const retry = () => this.retry();
    return problemBox(fault, { retry, askKey: () => this.app.askKey(retry) });
  }

  async again(answer) {
    if (this.run) return;
    const run = new AbortController();
    const foot = [...answer.after.children].filter((node) => node.matches(".foot"));
    this.busy(run);
    await watchAgain([answer], run.signal);
    answer.end(foot);
    if (this.run === run) this.busy(null);
  }

  stop() {
    this.run?.abort();
  }

  busy(run) {
    this.run = run;
    this.act.textContent = run ? "Stop" : "Send";
    this.act.classList.toggle("stop", Boolean(run));
    this.log.setAttribute("aria-busy", String(Boolean(run)));
  }

  keep(chat) {
    if (chat.gone) return;
    const kept = keepChat(chat);
    if (!kept) this.app.notice("This chat is not kept: the browser's storage is full or blocked. Delete chats you no longer need.");
    this.list.show(this.chat.id);
  }
}

function frame(kind, who, ...children) {
  return el(`article.message.${kind}`, { "aria-label": who }, el("p.who", { "aria-hidden": "true" }, who), ...children);
}
