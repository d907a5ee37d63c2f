// The fleet as the feed tells it, once a second.

import { Refused, ask, key } from "./api.js";
import { byId, element, follow, say } from "./dom.js";
import { Spark } from "./spark.js";

const KINDS = { ready: "good", idle: "good", failed: "bad", stopped: "bad", parked: "bad" };
const rate = (value) => `${value.toFixed(1)} tokens/s`;
const seconds = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`);
const megabytes = (value) => (value >= 1024 ? `${(value / 1024).toFixed(1)} GB` : `${value} MB`);
// A worker that has nothing to do still says how fast it was.
const speed = (worker) => (worker.running ? worker.decode_tokens_per_s : 0);
const sum = (workers, read) => workers.reduce((total, each) => total + read(each), 0);

export function show(state) {
  byId("told").hidden = false;
  showTotals(state);
  follow(byId("gateways"), state.gateways, (each) => each.id, makeCard, showGateway);
  follow(byId("workers"), state.workers, (each) => each.id, makeWorker, showWorker);
  byId("no-workers").hidden = state.workers.length > 0;
  showRows("queues", state.queues.filter((each) => each.waiting), (each) => each.model,
    (each) => `${each.model}: ${each.waiting} waiting`, "Nobody waits.");
  showRows("failures", state.failures, (each) => each.id,
    (each) => `${each.code}: ${each.model}, ${each.id}, ${ago(each.age_s)}`, "None.");
}

const ago = (age) => (age < 60 ? `${age} s ago` : age < 3600 ? `${Math.floor(age / 60)} min ago`
  : `${Math.floor(age / 3600)} h ago`);

function showTotals({ gateways, workers }) {
  const ready = workers.filter((each) => each.state === "ready").length;
  facts(byId("totals"), [
    ["Workers ready", `${ready} of ${workers.length}`],
    ["Running", `${sum(workers, (each) => each.running)}`],
    ["Waiting", `${sum(workers, (each) => each.waiting) + sum(gateways, (each) => each.queued)}`],
    ["Speed", rate(sum(workers, speed))],
    ["Models in memory", megabytes(sum(workers, (each) => each.resident_mb))],
  ], "div");
}

// Pairs of a term and its value in a <dl>; `group` wraps each pair.
function facts(list, pairs, group = "") {
  const told = [...list.querySelectorAll("dd")];
  const names = [...list.querySelectorAll("dt")].map((each) => each.textContent);
  if (names.join("\n") === pairs.map(([name]) => name).join("\n")) {
    pairs.forEach(([, value], place) => say(told[place], value));
    return;
  }
  list.replaceChildren(...pairs.flatMap(([name, value]) => {
    const pair = [element("dt", { textContent: name }), element("dd", { textContent: value })];
    return group ? [element(group, {}, ...pair)] : pair;
  }));
}

function showRows(id, items, idOf, told, nothing) {
  const rows = items.length ? items : [null];
  follow(byId(id), rows, (item) => (item ? idOf(item) : ""), () => element("li"),
    (row, item) => say(row, item ? told(item) : nothing));
}

function makeCard() {
  const card = element("li");
  card.name = element("span");
  card.state = element("span", { className: "state" });
  card.facts = element("dl", { className: "facts" });
  card.append(element("h3", {}, card.name, card.state), card.facts);
  return card;
}

function showState(card, id, state, told = state) {
  say(card.name, id);
  say(card.state, told);
  card.state.dataset.kind = KINDS[state] ?? "busy";
}

function showGateway(card, gateway) {
  showState(card, gateway.id, gateway.state);
  facts(card.facts, [
    ["Address", gateway.url],
    ["Version", gateway.version],
    ["Process", `${gateway.pid}`],
    ["Under way", `${gateway.streams}`],
    ["In line", `${gateway.queued}`],
  ]);
}

function makeWorker(worker) {
  const card = makeCard();
  card.what = element("p");
  card.load = element("meter", { min: 0 });
  card.load.setAttribute("aria-label", `Load of ${worker.id}`);
  card.error = element("p", { className: "error" });
  card.speed = new Spark("Speed", rate);
  card.first = new Spark("First token", seconds);
  card.actions = element("div", { className: "actions" });
  for (const [word, act] of [["Drain", drain], ["Undrain", undrain], ["Restart", restart]]) {
    const button = element("button", { type: "button", textContent: word });
    button.setAttribute("aria-label", `${word} ${worker.id}`);
    button.addEventListener("click", () => act(worker.id));
    card.actions.append(button);
  }
  card.facts.before(card.what, card.load);
  card.facts.after(card.speed.element, card.first.element, card.error, card.actions);
  return card;
}

function showWorker(card, worker) {
  const loading = worker.state === "loading" && worker.progress !== null;
  const told = loading ? `loading ${Math.round(100 * worker.progress)} %` : worker.state;
  if (card.state.textContent && card.dataset.state !== worker.state) announce(`${worker.id} is ${worker.state}`);
  card.dataset.state = worker.state;
  showState(card, worker.id, worker.state, told);
  say(card.what, [worker.model, worker.node, worker.engine, worker.detail].filter(Boolean).join(" · "));
  const most = worker.max_num_seqs || 1;
  Object.assign(card.load, { max: most, high: most * 0.8, optimum: 0, value: Math.min(worker.running, most) });
  facts(card.facts, workerFacts(worker));
  card.speed.add(speed(worker));
  card.first.add(worker.first_token_s);
  say(card.error, worker.last_error ?? "");
  card.error.hidden = !worker.last_error;
  card.actions.hidden = !key();
  const [drains, undrains, restarts] = card.actions.children;
  drains.disabled = !["ready", "idle", "loading"].includes(worker.state);
  undrains.disabled = worker.state !== "draining";
  restarts.disabled = worker.pid === null;
}

function workerFacts(worker) {
  return [
    ["Running", `${worker.running} of ${worker.max_num_seqs ?? "?"}`],
    ["Waiting", `${worker.waiting} of ${worker.max_waiting ?? "?"}`],
    ["Memory", `${megabytes(worker.resident_mb)}${worker.memory_mb ? ` of ${megabytes(worker.memory_mb)}` : ""}`],
    ["KV tokens", `${worker.kv_tokens ?? 0}`],
    ["Restarts seen", `${worker.restarts ?? 0}`],
    ["Rejected", `${worker.rejected}`],
    ["Breaker", worker.breaker],
    ["Heartbeat", worker.heartbeat_age_s === null ? "none" : `${seconds(worker.heartbeat_age_s)} ago`],
  ];
}

export function announce(text) {
  byId("said").hidden = !text;
  say(byId("said"), text);
}

async function order(worker, path, body, done) {
  try {
    await ask(`/admin/workers/${encodeURIComponent(worker)}/${path}`, { method: "POST", body });
    announce(done);
  } catch (error) {
    announce(error instanceof Refused ? error.message : "the gateway is not reached");
  }
}

const drain = (worker) => order(worker, "drain", '{"then":"stay"}', `${worker} is told to drain`);
const undrain = (worker) => order(worker, "undrain", undefined, `${worker} is told to take requests again`);

function restart(worker) {
  const dialog = byId("confirm");
  say(byId("confirm-title"), `Restart ${worker}?`);
  byId("confirm-no").onclick = () => dialog.close();
  byId("confirm-yes").onclick = () => {
    dialog.close();
    order(worker, "drain", '{"then":"restart"}', `${worker} is told to restart`);
  };
  dialog.showModal();
}
