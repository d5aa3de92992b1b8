// How an answer came about, from the blocks that the server shows: which slot was decided when, and how sure the
// network was. Plain data; nothing is drawn here.

/**
 * One slot: {text, confidence, order, state}. order: the block's how manieth step decided it, 0 where it was known from
 * the start. state: "masked"; "decided" (final, but something left of it is not); "draft" (may still be refused);
 * "settled" (its text is in the answer).
 */
function slotsOf(block, before, step) {
  const drafted = block.slots.every((slot) => !slot.masked);
  return block.slots.map((slot, n) => {
    if (slot.masked) return { text: "", confidence: 0, order: 0, state: "masked", id: null };
    const old = before?.[n];
    const known = old && old.state !== "masked" && old.id === slot.id;
    const order = known ? old.order : !before && n < block.settled ? 0 : step;
    const state = n < block.settled ? "settled" : drafted ? "draft" : "decided";
    return { text: slot.text ?? "", confidence: slot.confidence, order, state, id: slot.id };
  });
}

export class Trace {
  constructor() {
    this.places = []; // of the answer's tokens: {text, confidence, order, start}
    this.current = null; // {start, slots, step}
  }

  /** Takes one block as the server sends it; null where the mode has none. */
  see(block) {
    if (!block) return;
    const same = this.current?.start === block.start;
    if (this.current && !same) this.settle(block.start);
    const before = same ? this.current.slots : null;
    const fresh = block.slots.some((slot, n) => !slot.masked && (!before?.[n] || before[n].id !== slot.id));
    const step = same ? this.current.step + (fresh ? 1 : 0) : block.slots.some((s, n) => !s.masked && n >= block.settled) ? 1 : 0;
    this.current = { start: block.start, slots: slotsOf(block, before, step), step };
  }

  /** Notes the current block's slots left of place `stop` as tokens of the answer. */
  settle(stop) {
    if (!this.current) return;
    const { start, slots } = this.current;
    slots.forEach(({ text, confidence, order, state }, n) => {
      const place = start + n;
      if (place >= 0 && place < stop && state !== "masked" && !this.places[place]) {
        this.places[place] = { text, confidence, order, start };
      }
    });
  }

  /** The current block's slots that belong to the answer (one may begin inside the prompt). */
  slots() {
    return this.current ? this.current.slots.slice(Math.max(-this.current.start, 0)) : [];
  }

  /**
   * The answer as blocks of tokens, [[{text, confidence, order}, …], …], and what no block told of its end; null where
   * there were no blocks. In mode verified the last token of all may be the check's own, which no block has shown.
   */
  story(answer, tokens) {
    this.settle(tokens);
    const blocks = new Map();
    let text = "";
    for (let place = 0; place < tokens && this.places[place]; place += 1) {
      const token = this.places[place];
      if (!answer.startsWith(text + token.text)) break;
      text += token.text;
      blocks.set(token.start, [...(blocks.get(token.start) ?? []), token]);
    }
    return blocks.size ? { blocks: [...blocks.values()], rest: answer.slice(text.length) } : null;
  }
}

/** How many of the last characters of `text` are the first of `settled`: where a block begins in the text. */
export function overlap(text, settled) {
  for (let n = Math.min(text.length, settled.length); n > 0; n -= 1) {
    if (text.endsWith(settled.slice(0, n))) return n;
  }
  return 0;
}
