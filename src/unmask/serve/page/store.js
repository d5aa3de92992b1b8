// What the browser keeps: chats and settings for good, the key until the tab is closed. Where the browser keeps
// nothing (blocked or full storage), the page goes on with what is in memory.

const memory = new Map();
const CHAT = "unmask.chat.";

function get(area, name) {
  if (memory.has(name)) return memory.get(name);
  try {
    return window[area].getItem(name);
  } catch {
    return null;
  }
}

/** Whether the value is kept beyond this page. */
function put(area, name, value) {
  try {
    window[area].setItem(name, value);
    memory.delete(name);
    return true;
  } catch {
    memory.set(name, value);
    return false;
  }
}

function drop(area, name) {
  memory.delete(name);
  try {
    window[area].removeItem(name);
  } catch {
    // Nothing was kept.
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export const key = () => get("sessionStorage", "unmask.key") ?? "";
export const keepKey = (value) => (value ? put("sessionStorage", "unmask.key", value) : drop("sessionStorage", "unmask.key"));

export const theme = () => document.documentElement.dataset.theme;
export function keepTheme(value) {
  document.documentElement.dataset.theme = value;
  put("localStorage", "unmask.theme", value);
}

/** The kept settings over the defaults; what has another type than its default is passed over. */
export function settings(defaults) {
  const kept = parsed(get("localStorage", "unmask.settings")) ?? {};
  const right = Object.entries(defaults).filter(([name, value]) => typeof kept[name] === typeof value);
  return { ...defaults, ...Object.fromEntries(right.map(([name]) => [name, kept[name]])) };
}
export const keepSettings = (value) => put("localStorage", "unmask.settings", JSON.stringify(value));

/** A chat: {id, title, changed (milliseconds), messages: [{role, content, figures?, stopped?}]}. */
export function newChat() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return { id, title: "New chat", changed: Date.now(), messages: [] };
}

function isChat(value) {
  const right = (message) => typeof message?.role === "string" && typeof message?.content === "string";
  return typeof value?.id === "string" && typeof value.title === "string" && Array.isArray(value.messages) && value.messages.every(right);
}

/** Every kept chat, the last changed first. What is not a chat is passed over. */
export function chats() {
  const names = new Set([...memory.keys()]);
  try {
    for (let n = 0; n < localStorage.length; n += 1) names.add(localStorage.key(n));
  } catch {
    // Only what is in memory.
  }
  const kept = [...names].filter((name) => name.startsWith(CHAT)).map((name) => parsed(get("localStorage", name)));
  return kept.filter(isChat).sort((a, b) => b.changed - a.changed);
}

export function keepChat(chat) {
  chat.changed = Date.now();
  return put("localStorage", CHAT + chat.id, JSON.stringify(chat));
}

export const dropChat = (chat) => drop("localStorage", CHAT + chat.id);
