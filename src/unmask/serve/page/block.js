// A block of slots in the line of the text: masked ones are boxes, the others are shaded by how sure the network was.

import { el } from "./dom.js";

const NAMES = { masked: "masked", decided: "decided", draft: "drafted, to be checked", settled: "settled" };

export const percent = (share) => `${Math.round(share * 100)} %`;

/** What a slot is, in words. */
export function describe(slot, n) {
  if (slot.state === "masked") return `slot ${n + 1}: masked`;
  const when = slot.order ? `, step ${slot.order}` : ", known from the start";
  return `slot ${n + 1}: “${visible(slot.text).trim()}”, ${percent(slot.confidence)} sure${when}, ${NAMES[slot.state]}`;
}

/** A token as it can be seen: what is space and nothing else gets signs. */
function visible(text) {
  const signs = text.replaceAll("\n", "↵").replaceAll("\t", "⇥");
  return signs.trim() ? signs : "␣".repeat(Math.min(signs.length, 4));
}

function paint(element, slot, n, part) {
  const spaced = n && /^ +\S/.test(slot.text) ? "spaced" : "";
  const classes = ["slot", slot.state, spaced, part && n && n % part === 0 ? "part" : ""];
  element.className = classes.filter(Boolean).join(" ");
  element.style.setProperty("--sure", slot.confidence.toFixed(3));
  element.setAttribute("aria-label", describe(slot, n));
  element.firstChild.textContent = slot.state === "masked" ? "" : visible(slot.text);
  element.lastChild.textContent = slot.order ? String(slot.order) : "";
}

/**
 * onpoint: called with a slot's description when it is hovered or focused, and with null when it no longer is. One stop
 * of the Tab key; arrow keys go from slot to slot.
 */
export class BlockView {
  constructor({ part = 0, label = "The block being written", onpoint = () => {} } = {}) {
    this.part = part;
    this.onpoint = onpoint;
    this.slots = [];
    this.pointed = null;
    this.element = el("span.block", { role: "group", "aria-label": label });
    this.element.addEventListener("keydown", (event) => this.move(event));
  }

  show(slots) {
    this.slots = slots;
    const nodes = this.element.children;
    while (nodes.length > slots.length) this.element.lastChild.remove();
    while (nodes.length < slots.length) this.element.append(this.slot(nodes.length));
    slots.forEach((slot, n) => paint(nodes[n], slot, n, this.part));
    if (nodes.length && ![...nodes].some((node) => node.tabIndex === 0)) nodes[0].tabIndex = 0;
    if (this.pointed !== null && this.pointed < slots.length) this.point(this.pointed);
  }

  slot(n) {
    const point = () => this.point(n);
    const leave = () => this.point(null);
    const listeners = { onpointerenter: point, onpointerleave: leave, onfocus: point, onblur: leave };
    const attributes = { role: "img", tabindex: n ? "-1" : "0", ...listeners };
    return el("span.slot", attributes, el("span.token", { "aria-hidden": "true" }), el("span.order", { "aria-hidden": "true" }));
  }

  point(n) {
    this.pointed = n;
    this.onpoint(n === null ? null : describe(this.slots[n], n));
  }

  move(event) {
    const nodes = [...this.element.children];
    const from = nodes.indexOf(document.activeElement);
    const to = { ArrowRight: from + 1, ArrowLeft: from - 1, Home: 0, End: nodes.length - 1 }[event.key];
    if (from < 0 || to === undefined || !nodes[to]) return;
    event.preventDefault();
    nodes[from].tabIndex = -1;
    nodes[to].tabIndex = 0;
    nodes[to].focus();
  }
}
