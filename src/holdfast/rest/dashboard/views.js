// The pages: each a function of the driver's answers.

import { bar, parts, sparkline } from "./charts.js";
import { h } from "./dom.js";
import { bytes, clock, count, dollars, moment, percent, span } from "./format.js";
import { graph, heat } from "./graph.js";

export const TABS = [["overview", "Overview"], ["epochs", "Epochs and checkpoints"], ["failures", "Failures and restarts"], ["late", "Late records"], ["state", "State"], ["metrics", "Metrics"], ["settings", "Settings"]];

const ENDED = ["FINISHED", "CANCELED", "FAILED", "SUSPENDED", "DIED"];
const PHASES = { plan: "planning the input", job: "running the tasks", commit: "waiting for the last commit", metadata: "storing the checkpoint" };
const TASKS = { prepare: "restoring or continuing", read: "reading the source", process: "processing", output: "preparing output", state: "writing state" };

const some = (n, thing) => `${count(n)} ${thing}${n === 1 ? "" : "s"}`;

const badge = (state) => h("span", { class: "badge state-" + state.toLowerCase() }, state.toLowerCase());

// Drivers of this machine know each other by localhost; from another machine they are where this page came from.
export function elsewhere(job) {
  const url = new URL(job.url);
  if (url.hostname === "localhost") url.hostname = location.hostname;
  return `${url.origin}/#/jobs/${job.id}`;
}

function otherDrivers(jobs) {
  if (!jobs.length) return null;
  return h("section", {}, h("h2", {}, "Jobs of other drivers on this machine"), h("ul", {}, jobs.map((job) => h("li", { key: job.id },
    job.url ? h("a", { href: elsewhere(job) }, job.name) : `${job.name}: stands by, a driver on ${job.owner} owns the job`, " ", h("span", { class: "dim" }, job.id)))));
}

export function jobsPage({ jobs, elsewhere: others }) {
  if (!jobs) return h("p", { class: "empty" }, "Asking the driver …");
  if (!jobs.length) return h("p", { class: "empty" }, "This driver runs no job.");
  return h("section", {}, h("h1", {}, "Jobs of this driver"),
    h("div", { class: "scroll", tabindex: "0" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Job", "State", "For", "Records/s", "Backlog", "Restarts"].map((t, i) => h("th", { scope: "col", class: i > 2 ? "number" : "" }, t)))),
      h("tbody", {}, jobs.map((job) => h("tr", { key: job.jid },
        h("td", {}, h("a", { href: "#/jobs/" + job.jid }, job.name), h("div", { class: "dim" }, job.jid)),
        h("td", {}, badge(job.state)), h("td", {}, span(job.duration)),
        h("td", { class: "number" }, count(job["records-per-second"])), h("td", { class: "number" }, count(job["pending-records"])),
        h("td", { class: "number" }, count(job.restarts))))))), otherDrivers(others));
}

export function jobPage(state, actions) {
  const { view, route } = state;
  const over = ENDED.includes(view.state);
  const content = { overview, epochs, failures, late, state: stateTab, metrics, settings }[route.tab];
  return h("div", { key: view.id },
    h("div", { class: "job-head" },
      h("div", {}, h("h1", {}, view.name, " ", badge(view.state), view.stands_still?.length ? h("span", { class: "badge state-failed" }, "stands still") : ""),
        h("p", { class: "dim" }, h("code", {}, view.id), " · for ", span((over ? view.ended : view.now) - view.started), view.restored ? ` · resumed from checkpoint ${view.restored.id}` : "")),
      h("div", { class: "buttons" },
        h("button", { type: "button", disabled: over, onclick: () => actions.open("savepoint") }, "Savepoint"),
        h("button", { type: "button", disabled: over, onclick: () => actions.open("rescale") }, "Rescale"),
        h("button", { type: "button", disabled: over, onclick: () => actions.open("stop") }, "Stop with savepoint"),
        h("button", { type: "button", class: "danger", disabled: over, onclick: () => actions.open("cancel") }, "Cancel"))),
    h("nav", { class: "tabs", "aria-label": "Pages of the job" }, TABS.map(([tab, title]) =>
      h("a", { key: tab, href: `#/jobs/${view.id}/${tab}`, "aria-current": tab === route.tab ? "page" : null }, title,
        tab === "failures" && view.failures_total > 0 ? h("span", { class: "pill" }, count(view.failures_total)) : null,
        tab === "late" && view.late > 0 ? h("span", { class: "pill" }, count(view.late)) : null))),
    h("div", { key: route.tab }, content(state, actions)));
}

// Overview

function overview(state, actions) {
  const { view, epochs: recent } = state;
  const rates = recent.filter((e) => !e.failed).map((e, i, all) => (e.in * 1000) / Math.max(1, i ? e.started + e.duration - (all[i - 1].started + all[i - 1].duration) : e.duration));
  const done = recent.filter((e) => !e.failed);
  const figures = [
    ["Records/s", count(view.rates.in), `${count(view.rates.out)}/s out · ${count(view.records.in)} read`, rates],
    ["Backlog", count(view.backlog), view.backlog ? `records, ${span((1000 * view.backlog) / Math.max(view.rates.in, 1e-3))} of reading` : view.stands_still?.length ? "after the last epoch" : "the job keeps up", done.map((e) => e.backlog)],
    ["Event time is behind by", view.watermark === null ? "–" : span(view.lag), view.watermark === null ? "no watermark yet" : "watermark " + clock(view.watermark), []],
    ["Epoch", done.length ? span(done[done.length - 1].duration) : "–", done.length ? `number ${done[done.length - 1].number}` : "none yet", done.map((e) => e.duration)],
    ["State", bytes(view.checkpoint && view.checkpoint.state_size), view.checkpoint ? `checkpoint ${view.checkpoint.id}, ${span(view.now - view.checkpoint.at)} ago` : "no checkpoint yet", done.map((e) => e.state_size)],
    ["Storage requests", dollars(view.storage.cost_per_month), `a month, by ${view.storage.per_second.toFixed(1)} requests/s`, []],
    ["Failures", count(view.failures_total), `${some(view.restarts, "restart")} · ${some(view.late, "late record")} dropped`, []],
  ];
  const vertex = view.vertices.find((v) => v.id === state.selectedVertex);
  return h("div", { class: "stack" },
    h("dl", { class: "cards" }, figures.map(([name, value, more, points]) =>
      h("div", { class: "card figure", key: name }, h("dt", {}, name), h("dd", {}, h("span", { class: "big number" }, value), h("span", { class: "dim" }, more), points.length > 1 ? sparkline(points, name + " over the last epochs") : null)))),
    h("div", { class: "columns" },
      h("div", { class: "stack" },
        h("section", { class: "card" }, h("h2", {}, "Graph"), graph(view, state.selectedVertex, actions.selectVertex, state.sample && state.sample.of, actions.sample, state.narrow.matches),
          state.sample ? sample(state.sample, view, actions) : null,
          vertex ? vertexDetails(vertex) : h("p", { class: "dim" }, "Choose a vertex to see its operators and subtasks, or the label of an edge to see some of its records.")),
        h("section", { class: "card" }, h("h2", {}, "Epochs"), timeline(state, actions))),
      h("section", { class: "card" }, h("h2", {}, "What is slow, and why"), findings(view, actions))));
}

function findings(view, actions) {
  if (!view.findings.length) return h("p", { class: "dim" }, "Nothing to tell before the first epoch.");
  return h("ol", { class: "findings" }, view.findings.map((f) =>
    h("li", { key: f.title, class: f.kind },
      h("div", { class: "finding-head" }, h("strong", {}, f.title), f.share > 0 ? h("span", { class: "number" }, percent(f.share)) : null),
      f.share > 0 ? bar(f.share, f.kind === "good" ? "cool" : f.share > 0.4 ? "hot" : "warm") : null,
      h("p", {}, f.detail), f.remedy ? h("p", { class: "remedy" }, f.remedy) : null,
      f.vertex ? h("button", { class: "link", type: "button", onclick: () => actions.selectVertex(f.vertex) }, "Show the vertex") : null)));
}

function sample({ of: edge, found: taken, error }, view, actions) {
  const name = (id) => view.vertices.find((v) => v.id === id)?.name;
  const keyed = taken && taken.keys.length > 0;
  return h("div", { class: "details", key: "sample" },
    h("h3", {}, `Records from ${name(edge.from)} to ${name(edge.to)}`),
    h("div", { role: "status" },
      error ? h("p", { class: "error" }, error) : null,
      !error && !taken ? h("p", { class: "dim" }, "Waiting for the next epoch with records on this edge …") : null,
      taken ? h("p", { class: "dim" }, `${taken.records.length} of the ${some(taken.passed, "record")} of one epoch.`) : null),
    taken ? h("div", { class: keyed ? "columns" : "" },
      h("div", { class: "scroll", tabindex: "0" }, h("table", { class: "records" }, h("caption", {}, "Records"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Event time"), keyed ? h("th", { scope: "col" }, "Key") : null, h("th", { scope: "col" }, "Value"))),
        h("tbody", {}, taken.records.map((r, i) => h("tr", { key: i }, h("td", {}, r.timestamp === null ? "–" : moment(r.timestamp)), keyed ? h("td", {}, h("code", {}, r.key)) : null, h("td", {}, h("code", {}, r.value))))))),
      keyed ? h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("caption", {}, "Most frequent keys"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Key"), h("th", { scope: "col" }, "Share"))),
        h("tbody", {}, taken.keys.map((k) => h("tr", { key: k.key }, h("td", {}, h("code", {}, k.key)), h("td", {}, bar(k.share, k.share > 0.2 ? "hot" : "cool"), " ", `${(100 * k.share).toFixed(1)} %`)))))) : null) : null,
    h("div", { class: "buttons" }, taken || error ? h("button", { type: "button", onclick: () => actions.sample(edge) }, "Take another sample") : null,
      h("button", { class: "quiet", type: "button", onclick: actions.closeSample }, "Close")));
}

function vertexDetails(v) {
  const most = Math.max(...v.subtasks.map((s) => s.busy), 1e-9);
  return h("div", { class: "details", key: v.id },
    h("h3", {}, v.name),
    h("div", { class: "columns even" },
      h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("caption", {}, "Functions and operators"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Operator"), h("th", { scope: "col" }, "Time"), h("th", { scope: "col", class: "number" }, "Per record"), h("th", { scope: "col", class: "number" }, "State"))),
        h("tbody", {}, v.operators.map((o) => h("tr", { key: o.uid }, h("td", {}, o.name, h("div", { class: "dim" }, o.uid)),
          h("td", {}, bar(o.share, heat(o.share * v.busy)), " ", percent(o.share)),
          h("td", { class: "number" }, o.us_per_record === null ? "–" : `${o.us_per_record < 10 ? o.us_per_record.toFixed(1) : Math.round(o.us_per_record)} µs`),
          h("td", { class: "number" }, o.state_bytes ? bytes(o.state_bytes) : "–")))))),
      h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("caption", {}, "Subtasks"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "#"), h("th", { scope: "col" }, "Busy"), h("th", { scope: "col", class: "number" }, "Records"), h("th", { scope: "col", class: "number" }, "Watermark"))),
        h("tbody", {}, v.subtasks.map((s, i) => h("tr", { key: i }, h("td", {}, String(i + 1)),
          h("td", {}, bar(s.busy, s.busy === most && v.skew > 1.5 ? "hot" : "cool"), " ", percent(s.busy)),
          h("td", { class: "number" }, percent(s.records)), h("td", { class: "number" }, s.watermark === null ? "–" : clock(s.watermark)))))))),
    h("p", { class: "dim" }, `${some(v.records_in, "record")} in, ${count(v.records_out)} out, ${count(v.late)} late ones dropped; state of ${bytes(v.state_bytes)}.`));
}

// Epochs

function timeline(state, actions) {
  const { epochs: recent, selectedEpoch: chosen } = state;
  if (!recent.length) return h("p", { class: "dim" }, "No epoch has been completed yet.");
  const sorted = recent.map((e) => e.duration).sort((a, b) => a - b);
  const top = Math.max(1, Math.min(sorted[sorted.length - 1], 1.6 * sorted[Math.floor(0.9 * (sorted.length - 1))])); // few slow ones are cut
  const at = Math.max(0, recent.findIndex((e) => e.sequence === chosen));
  const focusable = recent.some((e) => e.sequence === chosen) ? at : recent.length - 1;
  const move = (event, i) => {
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: recent.length - 1 }[event.key];
    if (to === undefined || !recent[to]) return;
    event.preventDefault();
    actions.selectEpoch(recent[to].sequence);
    event.currentTarget.parentElement.children[to].focus();
  };
  const epoch = recent.find((e) => e.sequence === chosen);
  return h("div", {},
    h("div", { class: "timeline", role: "group", "aria-label": "Epochs, oldest first; arrow keys move" }, recent.map((e, i) =>
      h("button", { key: e.sequence, type: "button", class: `epoch ${e.failed ? "failed" : ""} ${e.sequence === chosen ? "chosen" : ""}`, tabindex: i === focusable ? "0" : "-1",
        "aria-pressed": String(e.sequence === chosen), onclick: () => actions.selectEpoch(e.sequence), onkeydown: (event) => move(event, i),
        title: `Epoch ${e.number}: ${e.failed ? "failed" : span(e.duration)}`, "aria-label": `Epoch ${e.number}, ${e.failed ? "failed" : `${span(e.duration)}, ${count(e.in)} records`}` },
        h("span", { class: "epoch-stack", style: { height: `${e.failed ? 100 : Math.min(100, Math.max(4, (100 * e.duration) / top)).toFixed(1)}%` } },
          Object.keys(PHASES).reverse().map((p) => h("span", { key: p, class: "phase-" + p, style: { "flex-grow": String(e.phases[p] || 0) } })))))),
    h("p", { class: "legend" }, Object.entries(PHASES).map(([p, title]) => h("span", {}, h("i", { class: "swatch phase-" + p }), title)), h("span", {}, h("i", { class: "swatch failed" }), "failed"),
      h("span", { class: "dim" }, `full height: ${span(top)}${sorted[sorted.length - 1] > top ? " or more" : ""}`)),
    epoch ? epochDetails(epoch, state.view) : null);
}

function epochDetails(e, view) {
  if (e.failed) return h("div", { class: "details" }, h("h3", {}, `Epoch ${e.number} failed at ${clock(e.started)}`), h("pre", { tabindex: "0" }, e.failed));
  const rows = (names, values) => Object.entries(names).filter(([p]) => values[p] !== undefined).map(([p, title]) =>
    h("tr", { key: p }, h("td", {}, h("i", { class: "swatch phase-" + p }), title), h("td", { class: "number" }, span(values[p])), h("td", {}, bar(values[p] / Math.max(e.duration, 1)))));
  const slow = e.straggler, vertex = slow && view.vertices.find((v) => v.id === slow.vertex);
  return h("div", { class: "details" },
    h("h3", {}, `Epoch ${e.number}: ${span(e.duration)} from ${clock(e.started)}`),
    h("p", {}, `${count(e.in)} records in, ${count(e.out)} out · ${bytes(e.written)} written, state of ${bytes(e.state_size)}`),
    slow && vertex ? h("p", {}, h("strong", {}, "Straggler: "), `${vertex.name}, subtask ${slow.subtask + 1}, worked ${span(slow.busy)}; the others ${span(slow.typical)} on average.`) : null,
    h("div", { class: "columns even" },
      h("table", {}, h("caption", {}, "Phases in the driver"), h("tbody", {}, rows(PHASES, e.phases))),
      h("table", {}, h("caption", {}, "Longest phases of a task"), h("tbody", {}, rows(TASKS, e.tasks)))));
}

const KINDS = { put: "write", get: "read", head: "look up", list: "list", delete: "delete" };

function cost({ storage, state, counts }, actions) {
  const total = Object.values(storage.requests).reduce((sum, n) => sum + n, 0);
  const pace = `${storage.interval ? `A checkpoint every ${span(storage.interval)}` : "A checkpoint as soon as there is input"}${storage.min_pause ? `, ${span(storage.min_pause)} after the one before at the earliest` : ""}.`;
  return h("section", { class: "card" }, h("h2", {}, "What this job costs"),
    h("p", {}, `${pace} Requests to the checkpoint storage: ${dollars(storage.cost_per_month)} a month at the rate of the last minute, ${dollars(storage.cost)} since this driver started the job.`),
    h("div", { class: "scroll", tabindex: "0" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Requests that", "Number", "For a checkpoint"].map((t, i) => h("th", { scope: "col", class: i ? "number" : "" }, t)))),
      h("tbody", {}, Object.entries(KINDS).map(([kind, title]) => h("tr", { key: kind }, h("td", {}, title), h("td", { class: "number" }, count(storage.requests[kind])), h("td", { class: "number" }, (storage.requests[kind] / Math.max(counts.completed, 1)).toFixed(2))))))),
    h("p", { class: "dim" }, `${count(total)} requests, ${storage.per_second.toFixed(1)} a second; ${bytes(storage.written)} written, ${bytes(storage.read)} read; ${count(storage.retries)} repeated, ${count(storage.throttled)} answered with "slow down".`),
    h("button", { type: "button", disabled: ENDED.includes(state), onclick: () => actions.open("pace") }, "Change the pace"));
}

function epochs(state, actions) {
  const { view, epochs: recent } = state, { counts } = view;
  return h("div", { class: "stack" },
    h("section", { class: "card" }, h("h2", {}, "Timeline"), timeline(state, actions)),
    cost(view, actions),
    h("section", { class: "card" }, h("h2", {}, "Checkpoints"),
      h("p", {}, `${count(counts.completed)} completed, ${count(counts.failed)} failed${view.restored ? `; resumed from ${view.restored.path}` : ""}.`),
      h("div", { class: "scroll", tabindex: "0" }, h("table", {},
        h("thead", {}, h("tr", {}, ["Epoch", "Began", "Duration", "Phases", "Records", "Written", "State", "Straggler"].map((t, i) => h("th", { scope: "col", class: [2, 4, 5, 6].includes(i) ? "number" : "" }, t)))),
        h("tbody", {}, [...recent].reverse().slice(0, 50).map((e) => h("tr", { key: e.sequence, class: e.failed ? "failed" : "" },
          h("td", {}, h("button", { class: "link", type: "button", onclick: () => actions.selectEpoch(e.sequence) }, String(e.number))), h("td", {}, clock(e.started)),
          h("td", { class: "number" }, e.failed ? "failed" : span(e.duration)),
          h("td", {}, e.failed ? e.failed.split("\n")[0] : parts(Object.keys(PHASES).map((p) => [p, e.phases[p]]), e.duration, Object.keys(PHASES).map((p) => `${PHASES[p]} ${span(e.phases[p])}`).join(", "))),
          h("td", { class: "number" }, e.failed ? "" : count(e.in)), h("td", { class: "number" }, e.failed ? "" : bytes(e.written)), h("td", { class: "number" }, e.failed ? "" : bytes(e.state_size)),
          h("td", {}, straggler(e, view)))))))));
}

function straggler(e, view) {
  const slow = e.straggler, vertex = slow && view.vertices.find((v) => v.id === slow.vertex);
  return vertex && slow.busy > 1.5 * slow.typical ? `${vertex.name} #${slow.subtask + 1} (${span(slow.busy)})` : "–";
}

// Failures, state, metrics, settings

function failures({ view }) {
  return h("div", { class: "stack" }, happened(view.events || []), exceptions(view));
}

function happened(events) {
  if (!events.length) return null;
  return h("section", { class: "card" }, h("h2", {}, "Restarts, rescales and savepoints"), h("div", { class: "scroll", tabindex: "0" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), h("th", { scope: "col" }, "What"), h("th", { scope: "col" }, "How"))),
    h("tbody", {}, events.map((e, i) => h("tr", { key: events.length - i }, h("td", {}, moment(e.time)), h("td", {}, e.kind), h("td", {}, e.text)))))));
}

function late({ view }) {
  const rows = view.vertices.filter((v) => v.late);
  if (!rows.length) return h("p", { class: "empty" }, "No record was dropped because it was late.");
  return h("div", { class: "stack" },
    h("section", { class: "card" }, h("h2", {}, "Late records dropped by vertex"), h("div", { class: "scroll", tabindex: "0" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Vertex"), h("th", { scope: "col" }, "Share of its input"), h("th", { scope: "col", class: "number" }, "Records"))),
      h("tbody", {}, rows.map((v) => h("tr", { key: v.id }, h("td", {}, v.name), h("td", {}, bar(v.late / Math.max(v.records_in, 1), "hot"), " ", percent(v.late / Math.max(v.records_in, 1))), h("td", { class: "number" }, count(v.late))))))),
      h("p", { class: "dim" }, "A side output for late data keeps such records; a larger bound of the watermark strategy, or allowed lateness of the window, makes fewer records late.")),
    h("section", { class: "card" }, h("h2", {}, "The latest of them"), h("div", { class: "scroll", tabindex: "0" }, h("table", { class: "records" },
      h("thead", {}, h("tr", {}, ["Operator", "Event time", "Behind the watermark by", "Value"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, view.late_records.map((r, i) => h("tr", { key: i }, h("td", {}, r.operator), h("td", {}, moment(r.timestamp)), h("td", {}, r.watermark === null ? "–" : span(Math.max(0, r.watermark - r.timestamp))), h("td", {}, h("code", {}, r.value))))))),
      view.late_records.length ? null : h("p", { class: "dim" }, "Records are shown with the token only: ", h("code", {}, "holdfast dashboard"), " opens this page with it.")));
}

function exceptions(view) {
  if (!view.failures.length) return h("p", { class: "empty" }, "No failure since this driver started the job.");
  return h("div", { class: "stack" }, h("p", {}, `${some(view.failures_total, "failure")}, ${some(view.restarts, "restart")}; the latest first.`),
    view.failures.map((f) => h("section", { class: "card", key: f.time },
      h("h2", {}, f.name, " ", h("span", { class: "dim" }, `${moment(f.time)}${f.task ? " · " + f.task : ""}`)), h("pre", { tabindex: "0" }, f.text))));
}

function largestKeys({ of: uid, found, error }, rows, actions) {
  const name = rows.find((o) => o.uid === uid)?.name;
  const shares = (title, head, list) => h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("caption", {}, title),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, head), h("th", { scope: "col" }, "Share"), h("th", { scope: "col", class: "number" }, "Bytes"))),
    h("tbody", {}, list.map(([key, size]) => h("tr", { key }, h("td", {}, h("code", {}, key)), h("td", {}, bar(size / Math.max(found.bytes, 1), size > 0.2 * found.bytes ? "hot" : "cool"), " ", `${((100 * size) / Math.max(found.bytes, 1)).toFixed(1)} %`), h("td", { class: "number" }, bytes(size)))))));
  return h("div", { class: "details", key: "keys" },
    h("h3", {}, `Largest keys of ${name}`),
    h("div", { role: "status" },
      error ? h("p", { class: "error" }, error) : null,
      !error && !found ? h("p", { class: "dim" }, "Another process reads the latest checkpoint …") : null,
      found ? h("p", { class: "dim" }, `${some(found.keys, "key")}, ${bytes(found.bytes)} before compression, without timers; in ${found.groups_read === found.groups ? `all ${found.groups}` : `${found.groups_read} of ${found.groups}`} key groups.`) : null),
    found ? h("div", { class: "columns even" }, shares("Keys", "Key", found.largest.map((k) => [k.key, k.bytes])), shares("Key groups", "Key group", found.largest_groups.map(([group, size]) => [String(group), size])), shares("States", "State", found.states)) : null,
    h("button", { class: "quiet", type: "button", onclick: actions.closeKeys }, "Close"));
}

function stateTab(state, actions) {
  const { view } = state;
  const over = ENDED.includes(view.state);
  const rows = view.vertices.flatMap((v) => v.operators.filter((o) => o.state_bytes).map((o) => ({ ...o, vertex: v })));
  const total = rows.reduce((sum, o) => sum + o.state_bytes, 0);
  if (!rows.length) return h("p", { class: "empty" }, "No operator has stored state yet.");
  return h("section", { class: "card" }, h("h2", {}, "Stored state by operator"),
    h("div", { class: "scroll", tabindex: "0" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Operator"), h("th", { scope: "col" }, "Vertex"), h("th", { scope: "col" }, "Share"), h("th", { scope: "col", class: "number" }, "Bytes"), h("th", { scope: "col", class: "number" }, "Largest subtask"), h("th", { scope: "col" }, "Keys"))),
      h("tbody", {}, rows.sort((a, b) => b.state_bytes - a.state_bytes).map((o) => h("tr", { key: o.uid }, h("td", {}, o.name, h("div", { class: "dim" }, o.uid)), h("td", {}, o.vertex.name),
        h("td", {}, bar(o.state_bytes / total), " ", percent(o.state_bytes / total)), h("td", { class: "number" }, bytes(o.state_bytes)), h("td", { class: "number" }, bytes(o.largest_subtask)),
        h("td", {}, h("button", { type: "button", "aria-label": `Largest keys of ${o.name}`, disabled: over, onclick: () => actions.largestKeys(o.uid) }, "Largest keys"))))))),
    state.keys ? largestKeys(state.keys, rows, actions) : null,
    h("p", { class: "dim" }, "Bytes of the files that the latest checkpoint refers to. ", h("code", {}, `holdfast checkpoints show ${view.name}`), " lists the states and their types."));
}

function metrics({ view }) {
  const list = (title, values) => h("section", { class: "card" }, h("h2", {}, title), Object.keys(values).length
    ? h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("tbody", {}, Object.entries(values).sort().map(([name, value]) => h("tr", { key: name }, h("td", {}, h("code", {}, name)), h("td", { class: "number" }, count(value)))))))
    : h("p", { class: "dim" }, "None."));
  return h("div", { class: "columns even" }, list("Of your functions", view.user_metrics), list("Of the job", view.metrics));
}

function settings({ config }) {
  if (!config) return h("p", { class: "empty" }, "Asking the driver …");
  return h("section", { class: "card" }, h("h2", {}, "Settings"), h("div", { class: "scroll", tabindex: "0" }, h("table", {}, h("tbody", {},
    Object.entries(config).map(([key, value]) => h("tr", { key }, h("td", {}, h("code", {}, key)), h("td", {}, value)))))));
}
