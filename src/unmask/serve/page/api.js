// What the page asks of the server. The key travels in a header only.

import { key } from "./store.js";

/** status: HTTP's, 0 where nothing answered, 200 where an answer failed midway; retryAfter: seconds. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { name: "ApiError", status, code, retryAfter });
  }
}

export const isAbort = (fault) => fault?.name === "AbortError";

async function call(path, { headers = {}, ...options } = {}) {
  const access = key() ? { Authorization: `Bearer ${key()}` } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers, ...access } });
  } catch (fault) {
    if (isAbort(fault)) throw fault;
    throw new ApiError("nothing answered");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // Not from this server: the status has to do.
  }
  const wait = Number.parseFloat(response.headers.get("Retry-After"));
  return new ApiError(error.message ?? `HTTP ${response.status}`, {
    status: response.status,
    code: error.code ?? null,
    retryAfter: Number.isFinite(wait) ? wait : null,
  });
}

/** {status: "ok", "loading", "restarting", "stopping", "stopped" or "down"}, or null where nothing answers. */
export async function health() {
  try {
    return await (await fetch("health")).json();
  } catch {
    return null;
  }
}

/** The served model: {id, unmask: {modes, context, block_size, sub_block_size, max_context, default_mode}}. */
export async function servedModel() {
  const list = await (await call("v1/models")).json();
  if (!list.data?.length) throw new ApiError("the server names no model", { status: 200 });
  return list.data[0];
}

/**
 * The events of one answer: {kind: "text", text}, {kind: "step", block, forwards, tokens, seconds} and last
 * {kind: "end", reason, figures}. Throws an ApiError, or an AbortError once `signal` is aborted.
 */
export async function* complete(body, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  let done = false;
  for await (const data of eventData(response.body)) {
    done = data === "[DONE]";
    if (!done) yield* eventsOf(JSON.parse(data));
  }
  if (!done) throw new ApiError("the connection was closed before the answer was complete", { status: 200, code: "cut" });
}

function* eventsOf(chunk) {
  if (chunk.error) throw new ApiError(chunk.error.message, { status: 200, code: chunk.error.code ?? null });
  const choice = chunk.choices?.[0];
  const more = chunk.unmask;
  if (choice?.delta?.content) yield { kind: "text", text: choice.delta.content };
  if (choice?.finish_reason) {
    yield { kind: "end", reason: choice.finish_reason, figures: more ?? null };
  } else if (more && "block" in more) {
    const { block, forwards, completion_tokens: tokens, seconds } = more;
    yield { kind: "step", block, forwards, tokens, seconds };
  }
}

/** The data of each server-sent event, wherever the network cuts it. */
export async function* eventData(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await read(reader);
      rest += decoder.decode(value, { stream: !done });
      const events = rest.split(/\r?\n\r?\n/);
      rest = events.pop();
      for (const event of events) {
        const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (fault) {
    if (isAbort(fault)) throw fault;
    throw new ApiError("the connection broke off", { status: 200, code: "cut" });
  }
}
