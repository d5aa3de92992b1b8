// The list of chats beside the conversation.

import { byId, button, el } from "./dom.js";
import { chats, dropChat, keepChat } from "./store.js";

export class ChatList {
  /** open: called with the chat that was chosen, or with null for a new one; deleted: with the id of one that is gone. */
  constructor({ open, deleted, notice }) {
    Object.assign(this, { open, deleted, notice });
    this.list = byId("chat-list");
    this.toggle = byId("chats-toggle");
    this.toggle.addEventListener("click", () => this.expand(this.toggle.getAttribute("aria-expanded") !== "true"));
    byId("new-chat").addEventListener("click", () => this.choose(null));
    window.addEventListener("storage", () => this.show(this.chosen));
  }

  expand(open) {
    this.toggle.setAttribute("aria-expanded", String(open));
    byId("chats").classList.toggle("open", open);
  }

  choose(chat) {
    this.expand(false);
    this.open(chat);
  }

  show(chosen) {
    this.chosen = chosen;
    const kept = chats();
    const rows = kept.map((chat) => this.row(chat));
    this.list.replaceChildren(...(rows.length ? rows : [el("li.empty", {}, "Chats are kept in this browser only.")]));
  }

  row(chat) {
    const here = chat.id === this.chosen ? "true" : null;
    const open = button(chat.title, () => this.choose(chat), { class: "chat-name", "aria-current": here });
    const remove = button("×", () => this.remove(chat), { class: "quiet remove", "aria-label": `Delete “${chat.title}”` });
    return el("li", {}, open, remove);
  }

  remove(chat) {
    dropChat(chat);
    this.deleted(chat.id);
    this.show(this.chosen);
    this.notice(`Deleted “${chat.title}”.`, "Undo", () => {
      keepChat(chat);
      this.show(this.chosen);
    });
    byId("new-chat").focus();
  }
}
