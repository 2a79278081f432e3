"use strict";
const $ = id => document.getElementById(id);
const KEY = "dragoman.key", PAST = "dragoman.past";
const MOST = 50; // past questions that are kept, newest first
const past = JSON.parse(sessionStorage.getItem(PAST) ?? "[]");
let running = null; // ends the requests under way
let listed = []; // what the endpoint lists of the questions that were asked before, newest first
let shown = null; // the entry whose answers are seen
let wanted = null; // the id of a kept answer that is on its way
let latest = 0; // counts what was asked of that list, and what made it void: only the latest response is shown

/** An element. Strings become text nodes, so nothing that is asked, found or answered can be markup. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter(child => child != null));
  return element;
}
const quiet = text => h("span", { class: "quiet" }, text);
const number = value => value.toLocaleString("en");
const seconds = value => `${value.toFixed(value < 10 ? 2 : 0)} s`;
const when = created => new Date(1000 * created).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });

function trouble(message) {
  $("trouble").hidden = !message;
  $("trouble").textContent = message ?? "";
}
function showKey(open) {
  $("key-form").hidden = !open;
  $("show-key").ariaExpanded = String(open);
  if (open) $("key").focus();
}

/** The endpoint's response to a request of this page; it is asked with a `body`, or told one. Fails with its words. */
async function call(path, body, signal) {
  const key = sessionStorage.getItem(KEY);
  const response = await fetch(`v1/${path}`, {
    method: body ? "POST" : "GET",
    headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) },
    body: body && JSON.stringify(body),
    signal,
  }).catch(fault => { throw fault.name === "AbortError" ? fault : new Error("the endpoint cannot be reached"); });
  if (response.ok) return response;
  const error = (await response.json().catch(() => null))?.error;
  if (response.status === 401) showKey(true);
  const wait = response.headers.get("Retry-After");
  throw new Error((error?.message ?? `the endpoint says ${response.status}`) + (wait ? `; ask again in ${wait} s` : ""));
}

/** The chunks of a streamed answer. */
async function* chunks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.slice("data: ".length);
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function loadModels() {
  try {
    const { data } = await (await call("models")).json();
    const names = data.map(model => model.id);
    const fill = (list, options, chosen) => {
      $(list).replaceChildren(...options.map(([value, label]) => h("option", { value }, label)));
      $(list).value = chosen;
    };
    const options = names.map(name => [name, name]), first = names.find(name => name !== "standard") ?? names[0];
    fill("model", options, first);
    fill("beside", [...options, ["", "nothing"]], first !== "standard" && names.includes("standard") ? "standard" : "");
    trouble(null);
  } catch (fault) {
    return trouble(fault.message);
  }
  await loadKept();
}

/** What this key has asked before, as far as the endpoint shows it: the newest ones, or those before the ones in the list. */
async function loadKept(after) {
  const mine = ++latest;
  try {
    const page = await (await call(`episodes${after ? `?after=${encodeURIComponent(after)}` : ""}`)).json();
    if (mine !== latest) return;
    listed = after ? [...listed, ...page.data] : page.data;
    $("earlier").hidden = !page.has_more;
    $("kept-said").textContent = "";
  } catch (fault) {
    if (mine !== latest) return;
    if (after) $("kept-said").textContent = fault.message;
    else listed = [];
  }
  drawKept();
}
function drawKept() {
  $("before").hidden = !listed.length;
  $("kept").replaceChildren(...listed.map(({ id, question, model, created }) => {
    const current = shown?.kept === id ? "true" : null;
    const button = h("button", { type: "button", "aria-current": current }, question, quiet(`${model}, ${when(created)}`));
    button.addEventListener("click", () => openKept(id));
    return h("li", {}, button);
  }));
}
/** Show an answer that the endpoint keeps, unless something else is shown before it is there. */
async function openKept(id) {
  wanted = id;
  $("kept-said").textContent = "opening …";
  try {
    const found = await (await call(`episodes/${encodeURIComponent(id)}`)).json();
    if (wanted !== id) return;
    $("kept-said").textContent = "";
    show({ kept: id, question: found.question, runs: [asRun(found)] });
    shown.view.querySelector("h2").focus();
  } catch (fault) {
    if (wanted === id) $("kept-said").textContent = fault.message;
  }
}
/** A kept answer in the form of one that was asked for here, but for its steps, which are a tree. */
function asRun({ id, model, created, answer, usage, feedback, steps, passages, phases, seconds, ...end }) {
  const flat = steps => steps.flatMap(step => [step, ...flat(step.steps)]);
  Object.assign(end, { citations: passages.map(id => ({ id, title: id })), seconds: { ...phases, total: seconds } });
  return { id, model, created, answer, usage, end, said: feedback ?? {}, steps: flat(steps), tree: steps };
}

/** Ask two models at once, and show each step as soon as it is told. */
async function ask(question, models) {
  const entry = { question, runs: models.map(model => ({ model, steps: [], answer: "", said: {} })) };
  past.unshift(entry);
  past.splice(MOST);
  running = new AbortController();
  $("send").textContent = "Stop";
  $("question").select(); // what is typed next takes its place
  show(entry);
  const begun = Date.now(), unfinished = () => entry.runs.filter(run => !run.end && !run.fault);
  const clock = setInterval(() => {
    for (const { view } of unfinished()) view.querySelector(".clock").textContent = `${Math.round((Date.now() - begun) / 1000)} s`;
  }, 1000);
  await Promise.all(entry.runs.map(run => follow(question, run, running.signal)));
  clearInterval(clock);
  $("send").textContent = "Ask";
  running = null;
  // it is on the disk some moments later; a list that somebody walks through is left alone
  setTimeout(() => { if (past.includes(entry) && !$("kept").contains(document.activeElement)) loadKept(); }, 500);
}

async function follow(question, run, signal) {
  const asked = { model: run.model, messages: [{ role: "user", content: question }], stream: true };
  const more = { stream_options: { include_usage: true }, dragoman: { trace: true } };
  try {
    for await (const chunk of chunks(await call("chat/completions", { ...asked, ...more }, signal))) {
      if (chunk.error) throw new Error(chunk.error.message);
      run.id = chunk.id;
      run.answer += chunk.choices[0]?.delta.content ?? "";
      if (chunk.usage) run.usage = chunk.usage;
      if (chunk.dragoman?.step) addStep(run, run.steps[run.steps.push(chunk.dragoman.step) - 1]);
      else if (chunk.dragoman) run.end = chunk.dragoman;
    }
    if (!run.end) throw new Error("the connection ended before the answer");
  } catch (fault) {
    run.fault = fault.name === "AbortError" ? "stopped" : fault.message;
  }
  finish(run);
  save();
}

/** What an action says, in few words: its kind and its fields, without the thought that led to it. */
function brief({ action, text }) {
  if (!action) return text?.trim() || "(nothing)";
  const { type, thought, ...fields } = action;
  return [type, ...Object.entries(fields).map(([name, value]) =>
    typeof value === "boolean" ? `${name}: ${words(value)}` : words(value))].filter(Boolean).join(" ");
}
function words(value) {
  if (Array.isArray(value)) return value.map(words).join(", ") || "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value && typeof value === "object" ? Object.values(value).map(words).join(" ") : String(value);
}

const STEPS = {
  decision: step => [
    h("div", {}, brief(step)),
    step.action?.thought ? h("div", { class: "quiet" }, step.action.thought) : null],
  search: step => [
    h("div", {}, step.query, step.page ? quiet(` page ${step.page + 1}`) : null),
    h("ul", { class: "passages", "aria-label": "found" },
      step.passages.length ? step.passages.map(id => h("li", { "data-id": id }, id)) : h("li", {}, "none"))],
  llm: step => h("pre", {}, step.text),
};
const nameOf = step => h("b", {}, step.kind === "llm" ? `LLM: ${step.name}` : step.name);
function addStep(run, step) {
  run.view.querySelector("ol").append(h("li", {}, nameOf(step), quiet(` ${seconds(step.seconds)}`), STEPS[step.kind](step)));
}
/** Steps with what came of each below it. A browser knows how lists and what can be folded are used by keyboard or read out. */
function drawTree(steps) {
  return h("ul", { class: "tree" }, steps.map(step => {
    const tokens = step.prompt_tokens + step.completion_tokens;
    const facts = [seconds(step.seconds), tokens && `${number(tokens)} tokens`,
      step.rests_on.length > 1 && `after ${step.rests_on.join(", ")}`].filter(Boolean).join(", ");
    return h("li", {}, h("details", { open: "" }, h("summary", {}, `${step.number} `, nameOf(step), quiet(` ${facts}`)),
      STEPS[step.kind](step), step.options && drawOptions(step.options), step.steps.length ? drawTree(step.steps) : null));
  }));
}
function drawOptions(options) {
  const likely = ({ probability }) => probability == null ? null : quiet(` ${Math.round(100 * probability)}%`);
  return h("details", {}, h("summary", {}, options.length === 1 ? "1 option" : `${options.length} options`),
    h("ul", { class: "options" }, options.map(option => h("li", { class: option.taken ? "taken" : null }, option.text, likely(option)))));
}

function finish({ view, answer, created, end, usage, steps, fault, said }) {
  const at = selector => view.querySelector(selector);
  at(".clock").textContent = "";
  at(".answer").className = `answer ${fault ? "trouble" : ""}`;
  at(".answer").textContent = fault ?? (answer || "(an empty answer)");
  if (!end) return;
  const notes = [end.degraded && `${end.degraded.system} answered in its place: ${end.degraded.reason}`,
    end.stop !== "answered" && `ended with ${end.stop}`].filter(Boolean);
  at(".note").hidden = !notes.length;
  at(".note").textContent = notes.join("; ");
  const found = new Set(steps.flatMap(step => step.passages ?? [])), kept = new Set(end.citations.map(passage => passage.id));
  const { total, ...phases } = end.seconds;
  const parts = Object.entries(phases).filter(([, value]) => value >= .005).map(([name, value]) => `${name} ${seconds(value)}`);
  const rows = {
    ...(created && { asked: when(created) }),
    time: seconds(total) + (parts.length ? ` (${parts.join(", ")})` : ""),
    tokens: usage ? `${number(usage.total_tokens)} (${number(usage.prompt_tokens)} read, ${number(usage.completion_tokens)} written)` : "unknown",
    passages: `${found.size} found, ${kept.size} kept`,
    decisions: number(end.decisions),
    ...(end.policy && { policy: end.policy }),
  };
  at("dl").replaceChildren(...Object.entries(rows).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  at(".kept").hidden = !kept.size;
  at(".kept ul").replaceChildren(...end.citations.map(({ id, title }) =>
    h("li", { "data-id": id }, title || id, title && title !== id ? quiet(` ${id}`) : null)));
  for (const item of view.querySelectorAll("details [data-id]")) item.classList.toggle("taken", kept.has(item.dataset.id));
  at(".feedback").hidden = false;
  at(".feedback input").value = said.answer ?? "";
  showRating(view, said);
}

function showRating(view, { rating }) {
  for (const button of view.querySelectorAll("[data-rating]"))
    button.setAttribute("aria-pressed", String(button.dataset.rating === rating));
}
/** Tell the endpoint all that has been said of an answer: what it is told last takes the place of all before. */
async function say(run, more) {
  const before = run.said, status = run.view.querySelector(".said");
  run.said = { ...before, ...more };
  showRating(run.view, run.said);
  try {
    await call("feedback", { id: run.id, ...run.said });
    status.textContent = "Kept, thank you.";
    save();
  } catch (fault) {
    run.said = before;
    showRating(run.view, before);
    status.textContent = `Not kept: ${fault.message}`;
  }
}

function drawCard(run) {
  const view = run.view = $("card").content.firstElementChild.cloneNode(true);
  view.setAttribute("aria-label", run.model);
  view.querySelector("h3").textContent = run.model;
  view.querySelector(".answer").className = "answer quiet";
  view.querySelector(".answer").textContent = "asking …";
  if (run.tree) view.querySelector("ol").replaceWith(drawTree(run.tree));
  else run.steps.forEach(step => addStep(run, step));
  if (run.end || run.fault) finish(run);
  for (const button of view.querySelectorAll("[data-rating]"))
    button.addEventListener("click", () => say(run, { rating: button.dataset.rating }));
  view.querySelector(".feedback").addEventListener("submit", event => {
    event.preventDefault();
    say(run, { answer: view.querySelector(".feedback input").value });
  });
  return view;
}

/** Show a question with its answers, and the lists of all of them. Views are drawn once: they may be streaming. */
function show(entry) {
  shown = entry;
  wanted = null;
  if (entry) entry.view ??= h("section", { "aria-label": "Answers" },
    h("h2", { class: "asked", tabindex: "-1" }, entry.question),
    h("div", { class: "cards" }, entry.runs.map(drawCard)));
  $("shown").replaceChildren(entry?.view ?? "");
  $("past").replaceChildren(...past.map(one => {
    const button = h("button", { type: "button", "aria-current": one === entry ? "true" : null }, one.question);
    button.addEventListener("click", () => { show(one); one.view.querySelector("h2").focus(); });
    return h("li", {}, button);
  }));
  $("forget").hidden = !past.length;
  $("none").hidden = past.length > 0;
  drawKept();
}
/** Keep what was asked in this tab. Of more than it may hold, the newest stay. */
function save() {
  const kept = past.filter(entry => entry.runs.every(run => run.end || run.fault));
  for (; kept.length; kept.pop()) {
    try {
      sessionStorage.setItem(PAST, JSON.stringify(kept, (name, value) => name === "view" ? undefined : value));
      return;
    } catch { /* too much: without the oldest */ }
  }
}

$("ask").addEventListener("submit", async event => {
  event.preventDefault();
  if (running) return running.abort();
  if (!$("model").value) await loadModels();
  const question = $("question").value.trim(), models = [$("model").value, $("beside").value].filter(Boolean);
  if (question && models.length) ask(question, [...new Set(models)]);
});
$("question").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) $("ask").requestSubmit();
});
$("jump").addEventListener("click", () => $("questions").focus());
$("show-key").addEventListener("click", () => showKey($("key-form").hidden));
$("key-form").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value);
  $("key").value = "";
  showKey(false);
  $("question").focus();
  loadModels();
});
$("forget").addEventListener("click", () => {
  running?.abort();
  past.length = 0;
  sessionStorage.removeItem(PAST);
  sessionStorage.removeItem(KEY);
  listed = [];
  latest++;
  show(null);
});
$("earlier").addEventListener("click", async () => {
  const before = listed.length;
  await loadKept(listed.at(-1).id);
  $("kept").children[before]?.firstElementChild.focus();
});
show(past[0]);
loadModels();
