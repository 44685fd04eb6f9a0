// The dashboard: what the address names is asked for every two seconds, while the page is visible, and shown.

import { ask, hasToken, setToken, takeToken } from "./api.js";
import { h, render } from "./dom.js";
import { elsewhere, jobPage, jobsPage, TABS } from "./views.js";

const EVERY_MS = 2000, OTHER_JOBS_EVERY = 5;

const state = {
  route: {}, jobs: null, elsewhere: [], view: null, config: null, epochs: [], selectedVertex: null, selectedEpoch: null, sample: null, keys: null,
  problem: null, dialog: null, notice: null, narrow: matchMedia("(max-width: 760px)"),
};
let timer = null, asking = 0, turns = 0;

function route() {
  takeToken();
  const [, page, id, tab] = location.hash.split("/");
  const next = page === "jobs" && id ? { id: decodeURIComponent(id), tab: TABS.some(([t]) => t === tab) ? tab : "overview" } : {};
  if (next.id !== state.route.id) Object.assign(state, { view: null, config: null, epochs: [], selectedVertex: null, selectedEpoch: null, sample: null, keys: null, problem: null });
  state.route = next;
  refresh();
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++asking;
  try {
    await update(mine);
    if (mine === asking) state.problem = null;
  } catch (error) {
    if (mine === asking) state.problem = error.status === 404 ? "The driver no longer runs this job." : "The driver does not answer. It may have ended; `holdfast list --all` shows how.";
  }
  if (mine !== asking) return;
  draw();
  if (!document.hidden) timer = setTimeout(refresh, EVERY_MS);
}

async function update(mine) {
  const { id, tab } = state.route;
  if (!id || !state.jobs || ++turns % OTHER_JOBS_EVERY === 0) {
    const [{ jobs }, other] = await Promise.all([ask("jobs/overview"), ask("jobs/elsewhere").catch(() => ({ jobs: [] }))]);
    if (mine !== asking) return;
    Object.assign(state, { jobs, elsewhere: other.jobs });
  }
  if (!id) {
    const { jobs } = state;
    if (jobs.length === 1 && !state.elsewhere.length) location.replace(`#/jobs/${jobs[0].jid}`);
    return;
  }
  const since = state.epochs.length ? state.epochs[state.epochs.length - 1].sequence : 0;
  const view = await ask(`jobs/${id}/view?since=${since}`);
  if (mine !== asking || id !== state.route.id) return;
  state.view = view;
  state.epochs = [...state.epochs, ...view.epochs].slice(-view.epochs_kept);
  if (tab === "settings" && !state.config) state.config = (await ask(`jobs/${id}/config`))["execution-config"]["user-config"];
}

const set = (changes) => {
  Object.assign(state, changes);
  draw();
};

function draw() {
  const { view, route: at } = state;
  document.title = at.id && view ? `${view.name} – ${view.state} – Holdfast` : "Holdfast";
  const page = at.id ? (view ? jobPage(state, actions) : h("p", { class: "empty" }, state.problem ? "" : "Asking the driver …")) : jobsPage(state);
  render(document.getElementById("app"), [
    h("header", { class: "top" },
      h("a", { class: "brand", href: "#/" }, h("img", { src: "ui/icon.svg", alt: "", width: 24, height: 24 }), "Holdfast"),
      h("nav", { "aria-label": "Jobs", class: "jobs-nav" }, (state.jobs || []).map((job) =>
        h("a", { key: job.jid, href: `#/jobs/${job.jid}`, "aria-current": job.jid === at.id ? "page" : null }, job.name)),
        (state.elsewhere || []).filter((job) => job.url).map((job) => h("a", { key: job.id, class: "elsewhere", href: elsewhere(job), title: "In another driver" }, job.name, h("span", { "aria-hidden": "true" }, " ↗"), h("span", { class: "hidden" }, ", in another driver")))),
      h("button", { class: "quiet", type: "button", onclick: theme, title: "Light or dark" }, h("span", { "aria-hidden": "true" }, "◐"), h("span", { class: "hidden" }, "Switch between light and dark"))),
    h("div", { role: "status", "aria-live": "polite" },
      state.problem && h("p", { class: "banner bad" }, state.problem),
      state.notice && h("p", { class: "banner " + state.notice.kind }, state.notice.text, h("button", { class: "quiet", type: "button", onclick: () => set({ notice: null }) }, "Dismiss"))),
    h("main", { id: "main", tabindex: "-1" }, page),
    h("dialog", { id: "dialog", oncancel: back, "aria-labelledby": "dialog-title" }, state.dialog ? dialog(state.dialog) : []),
  ]);
  const box = document.getElementById("dialog");
  if (state.dialog && !box.open) box.showModal();
  if (!state.dialog && box.open) box.close();
}

function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("holdfast-theme", document.documentElement.dataset.theme);
}

// What changes the job.

const DIALOGS = {
  savepoint: { title: "Write a savepoint", text: "The job goes on.", directory: true, ok: "Write savepoint" },
  rescale: { title: "Rescale the job", text: "After its current epoch the job goes on at another parallelism. Operators with a parallelism of their own keep it.", parallelism: true, ok: "Rescale" },
  pace: { title: "Change the pace of checkpoints", text: "Holds until the job's next start. The longer the interval, the fewer requests, and the later exactly-once results.", pace: true, ok: "Change the pace" },
  stop: { title: "Stop with a savepoint", text: "The job reads no more input, writes a savepoint, and ends. It can be started again from there.", directory: true, drain: true, ok: "Stop the job" },
  sample: { title: "Show records", text: "Shows some records of one epoch, and the most frequent keys. The job goes on.", ok: "Show records" },
  keys: { title: "Show the largest keys", text: "Another process reads the latest checkpoint. The job goes on.", ok: "Show the keys" },
  cancel: { title: "Cancel the job", text: "The job completes its epoch, commits its output, and ends. The next start resumes from its last checkpoint.", ok: "Cancel the job" },
};

function dialog({ kind, error, busy }) {
  const { title, text, directory, parallelism, pace, drain, ok } = DIALOGS[kind];
  return h("form", { key: kind, onsubmit: (event) => { event.preventDefault(); act(kind, new FormData(event.target)); } },
    h("h2", { id: "dialog-title" }, title), h("p", {}, text),
    directory && h("label", {}, "Directory", h("input", { name: "directory", placeholder: "the job's execution.checkpointing.savepoint-dir", autocomplete: "off", spellcheck: "false" })),
    parallelism && h("label", {}, "Parallelism", h("input", { name: "parallelism", type: "number", min: 1, required: true, value: Math.max(...state.view.vertices.map((vertex) => vertex.parallelism)) })),
    pace && h("label", {}, "Seconds between two checkpoints (0: as the monthly budget for requests allows)", h("input", { name: "interval", type: "number", min: 0, step: "any", required: true, value: state.view.storage.interval / 1000 })),
    pace && h("label", {}, "Seconds from a checkpoint to the next epoch, at least", h("input", { name: "pause", type: "number", min: 0, step: "any", required: true, value: state.view.storage.min_pause / 1000 })),
    drain && h("label", { class: "check" }, h("input", { type: "checkbox", name: "drain" }), " Drain: first fire all windows and timers"),
    !hasToken() && h("label", {}, "Token", h("input", { name: "token", type: "password", required: true, autocomplete: "off" }),
      h("small", {}, "On the driver's host, ", h("code", {}, "holdfast token"), " prints it; ", h("code", {}, "holdfast dashboard"), " opens this page with it.")),
    error && h("p", { class: "error", role: "alert" }, error),
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: back }, "Back"),
      h("button", { type: "submit", class: !["stop", "cancel"].includes(kind) ? "main" : "danger", disabled: Boolean(busy) }, busy ? "Asking …" : ok)));
}

function back() {
  set({ dialog: null, ...(hasToken() ? {} : { sample: null, keys: null }) });
}

async function act(kind, form) {
  if (form.get("token")) setToken(form.get("token"));
  if (kind in QUESTIONS) return question(kind, state[kind].of);
  set({ dialog: { kind, busy: true } });
  const { id } = state.route, { name } = state.view;
  try {
    if (kind === "cancel") {
      await ask(`jobs/${id}?mode=cancel`, "PATCH");
      set({ dialog: null, notice: { kind: "good", text: `${name} completes its epoch and ends.` } });
    } else if (kind === "pace") {
      const [interval, pause] = ["interval", "pause"].map((name) => Math.round(1000 * form.get(name)));
      await ask(`jobs/${id}/checkpoints/config?interval=${interval}&min_pause=${pause}`, "PATCH");
      set({ dialog: null, notice: { kind: "good", text: `${name} takes checkpoints at the new pace.` } });
    } else if (kind === "rescale") {
      const parallelism = form.get("parallelism");
      const begun = await ask(`jobs/${id}/rescaling?parallelism=${parallelism}`, "PATCH");
      set({ dialog: null, notice: { kind: "", text: `${name} is rescaled after its current epoch …` } });
      follow(`jobs/${id}/rescaling/${begun["request-id"]}`, () => `${name} runs at parallelism ${parallelism}.`, "The job was not rescaled");
    } else {
      const body = { targetDirectory: form.get("directory").trim() || null, drain: form.get("drain") === "on" };
      const begun = await ask(`jobs/${id}/${kind === "stop" ? "stop" : "savepoints"}`, "POST", body);
      set({ dialog: null, notice: { kind: "", text: `Writing the savepoint ${begun.location} …` } });
      follow(`jobs/${id}/savepoints/${begun["request-id"]}`, (location) => "Savepoint: " + location, `The savepoint ${begun.location} was not written`);
    }
    refresh();
  } catch (error) {
    set({ dialog: { kind, error: error.message } });
  }
}

// What is asked of the job beside its figures: a sample of records, the largest keys. It shows data, so it needs the token.

const QUESTIONS = {
  sample: { path: () => "samples", answers: "samples", outcome: "sample", body: (edge) => edge },
  keys: { path: (uid) => `state/${encodeURIComponent(uid)}/largest-keys`, answers: "largest-keys", outcome: "keys" },
};

async function question(kind, of) {
  const wanted = { of, found: null, error: null }, { path, answers, outcome, body } = QUESTIONS[kind];
  const tell = (answer) => state[kind] === wanted && set({ [kind]: Object.assign(wanted, answer) });
  set({ [kind]: wanted, dialog: hasToken() ? null : { kind } });
  if (!hasToken()) return;
  try {
    const { id } = state.route;
    const begun = await ask(`jobs/${id}/${path(of)}`, "POST", body && body(of));
    while (state[kind] === wanted && id === state.route.id) {
      const { status, operation } = await ask(`jobs/${id}/${answers}/${begun["request-id"]}?wait=5`);
      if (status.id !== "COMPLETED") continue;
      const failure = operation["failure-cause"];
      return tell(failure ? { error: failure["stack-trace"] } : { found: operation[outcome] });
    }
  } catch (error) {
    tell({ error: error.message });
  }
}

async function follow(path, done, failed) {
  try {
    for (;;) {
      const { status, operation, progress } = await ask(path + "?wait=2");
      if (status.id !== "COMPLETED") {
        if (progress) set({ notice: { kind: "", text: `Writing the savepoint: ${progress.done} of ${progress.total} parts …` } });
        continue;
      }
      const failure = operation["failure-cause"];
      set({ notice: failure ? { kind: "bad", text: failure["stack-trace"] } : { kind: "good", text: done(operation.location) } });
      return;
    }
  } catch (error) {
    set({ notice: { kind: "bad", text: `${failed}, or its driver ended before it said so. A savepoint is complete if it has a file _metadata.` } });
  }
}

const actions = {
  open: (kind) => set({ dialog: { kind } }),
  sample: (edge) => question("sample", edge),
  closeSample: () => set({ sample: null }),
  largestKeys: (uid) => question("keys", uid),
  closeKeys: () => set({ keys: null }),
  selectVertex: (id) => set({ selectedVertex: state.selectedVertex === id ? null : id }),
  selectEpoch: (number) => set({ selectedEpoch: state.selectedEpoch === number ? null : number }),
};

const saved = localStorage.getItem("holdfast-theme");
if (saved) document.documentElement.dataset.theme = saved;
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : refresh());
state.narrow.addEventListener("change", draw);
route();
