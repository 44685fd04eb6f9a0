// The job's graph: vertices in columns by their distance from the sources, as buttons; edges as curves behind them.

import { h } from "./dom.js";
import { bytes, count, percent, span } from "./format.js";
import { bar } from "./charts.js";

const NODE = { width: 236, height: 134 }, GAP = { along: 96, across: 28 }, MARGIN = 10;
const LEAST_WIDTH = 148, SMALL = 215;

export function layout(vertices, edges, down) {
  const depth = new Map(vertices.map((v) => [v.id, 0]));
  for (let changed = true, rounds = 0; changed && rounds <= vertices.length; rounds++) {
    changed = false;
    for (const { from, to } of edges) {
      if (depth.get(to) < depth.get(from) + 1) {
        depth.set(to, depth.get(from) + 1);
        changed = true;
      }
    }
  }
  const columns = [];
  for (const v of vertices) (columns[depth.get(v.id)] ||= []).push(v.id);
  const place = new Map();
  columns.forEach((column) => column.forEach((id, i) => place.set(id, i)));
  for (const column of columns.slice(1)) { // next to what they read from, to cross fewer edges
    const wish = (id) => {
      const from = edges.filter((e) => e.to === id).map((e) => place.get(e.from));
      return from.reduce((a, b) => a + b, 0) / Math.max(1, from.length);
    };
    column.sort((a, b) => wish(a) - wish(b)).forEach((id, i) => place.set(id, i));
  }
  const most = Math.max(...columns.map((c) => c.length));
  NODE.width = down ? Math.max(LEAST_WIDTH, Math.min(236, (innerWidth - 70 - (most - 1) * GAP.across) / most)) : 236;
  NODE.height = NODE.width < SMALL ? 176 : 134;
  const along = (down ? NODE.height : NODE.width) + GAP.along * (down ? 0.6 : 1);
  const across = (down ? NODE.width : NODE.height) + GAP.across;
  const at = new Map();
  columns.forEach((column, i) => column.forEach((id, j) => {
    const a = MARGIN + i * along, b = MARGIN + (j + (most - column.length) / 2) * across;
    at.set(id, down ? [b, a] : [a, b]);
  }));
  const far = [columns.length * along - GAP.along * (down ? 0.6 : 1) + 2 * MARGIN, most * across - GAP.across + 2 * MARGIN];
  return { at, width: down ? far[1] : far[0], height: down ? far[0] : far[1] };
}

export function graph(view, selected, select, edge, takeSample, down) {
  const { at, width, height } = layout(view.vertices, view.edges, down);
  return h("div", { class: "graph", tabindex: "0", role: "region", "aria-label": "Job graph; every vertex is a button" },
    h("div", { class: "graph-area", style: { width: width + "px", height: height + "px" } },
      h("svg", { key: "edges", class: "edges", width, height, "aria-hidden": "true" },
        h("defs", {}, h("marker", { id: "arrow", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" },
          h("path", { d: "M0 0L8 4L0 8Z", class: "arrow" }))),
        view.edges.map((edge) => curve(edge, at, down))),
      view.edges.map((e) => label(e, view, at, edge, takeSample, down)),
      view.vertices.map((v) => vertex(v, at.get(v.id), v.id === selected, select))));
}

function ends(edge, at, down) {
  const [x1, y1] = at.get(edge.from), [x2, y2] = at.get(edge.to);
  return down
    ? [x1 + NODE.width / 2, y1 + NODE.height, x2 + NODE.width / 2, y2]
    : [x1 + NODE.width, y1 + NODE.height / 2, x2, y2 + NODE.height / 2];
}

function curve(edge, at, down) {
  const [a, b, c, d] = ends(edge, at, down);
  const bend = down ? `${a} ${(b + d) / 2} ${c} ${(b + d) / 2}` : `${(a + c) / 2} ${b} ${(a + c) / 2} ${d}`;
  return h("g", { key: edge.from + edge.to },
    h("path", { class: "edge", d: `M${a} ${b}C${bend} ${c} ${d}`, "marker-end": "url(#arrow)" }));
}

function label(edge, view, at, chosen, takeSample, down) {
  const [a, b, c, d] = ends(edge, at, down);
  const name = (id) => view.vertices.find((v) => v.id === id).name;
  const on = Boolean(chosen && chosen.from === edge.from && chosen.to === edge.to);
  return h("button", {
    key: edge.from + edge.to, type: "button", class: `edge-label ${on ? "chosen" : ""}`, style: { left: (a + c) / 2 + "px", top: (b + d) / 2 + "px" },
    "aria-label": `Records from ${name(edge.from)} to ${name(edge.to)}, ${edge.how}`, "aria-pressed": String(on),
    title: "Take a sample of the records on this edge", onclick: () => takeSample({ from: edge.from, to: edge.to }),
  }, edge.how);
}

export const heat = (busy) => (busy > 0.8 ? "hot" : busy > 0.5 ? "warm" : "cool");

function vertex(v, [x, y], chosen, select) {
  const behind = v.backlog > 5 * v.in_rate;
  const facts = [
    ["in", count(v.in_rate) + "/s"],
    ["out", count(v.out_rate) + "/s"],
    v.backlog === null ? ["state", bytes(v.state_bytes)] : ["backlog", count(v.backlog)],
    ["lag", v.lag === null ? "–" : span(v.lag)],
  ];
  return h("button", {
    key: v.id, class: `vertex ${heat(v.busy)} ${behind ? "behind" : ""} ${chosen ? "chosen" : ""} ${NODE.width < SMALL ? "small" : ""}`, type: "button",
    style: { left: x + "px", top: y + "px", width: NODE.width + "px", height: NODE.height + "px" },
    "aria-pressed": String(chosen), onclick: () => select(v.id),
    "aria-label": `${v.name}, busy ${percent(v.busy)}, parallelism ${v.parallelism}, ${facts.map((f) => f.join(" ")).join(", ")}`,
  },
    h("span", { class: "vertex-name", title: v.name }, v.name),
    h("span", { class: "vertex-busy" }, bar(v.busy, heat(v.busy)), h("span", { class: "number" }, percent(v.busy) + " busy")),
    h("span", { class: "vertex-facts" },
      facts.map(([name, value]) => h("span", {}, h("span", { class: "dim" }, name + " "), h("span", { class: "number" }, value))),
    ),
    h("span", { class: "vertex-parallelism", title: "parallelism" }, "×" + v.parallelism));
}
