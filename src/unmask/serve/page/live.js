// For screen readers: whole sentences of committed text, once each. Nothing provisional comes here.

import { el } from "./dom.js";

const SENTENCE = /^[\s\S]*?[.!?…:;\n]+\s/;

export class Announcer {
  constructor(region) {
    this.region = region;
    this.rest = "";
  }

  start() {
    this.region.replaceChildren();
    this.rest = "";
  }

  add(text) {
    this.rest += text;
    for (let found = this.rest.match(SENTENCE); found; found = this.rest.match(SENTENCE)) {
      this.say(found[0]);
      this.rest = this.rest.slice(found[0].length);
    }
  }

  end() {
    this.say(this.rest);
    this.rest = "";
  }

  say(text) {
    if (text.trim()) this.region.append(el("p", {}, text.trim()));
  }
}
