// Small charts in SVG.

import { h } from "./dom.js";

export function sparkline(points, label) {
  const width = 120, height = 28;
  if (points.length < 2) return h("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const top = Math.max(...points, 1e-9);
  const at = points.map((value, i) => [(i * width) / (points.length - 1), height - 2 - (value / top) * (height - 5)]);
  const line = at.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
  return h("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("path", { class: "spark-area", d: `M0 ${height}L${line}L${width} ${height}Z` }),
    h("path", { class: "spark-line", d: `M${line}`, "vector-effect": "non-scaling-stroke" }));
}

export function bar(share, kind = "", label = "") {
  return h("span", { class: "bar " + kind, role: "img", "aria-label": label || `${Math.round(100 * share)} percent` },
    h("span", { class: "bar-fill", style: { width: `${Math.min(100, Math.max(0, 100 * share)).toFixed(1)}%` } }));
}

export function parts(pieces, total, label) {
  return h("span", { class: "parts", role: "img", "aria-label": label },
    pieces.filter(([, value]) => value > 0).map(([name, value]) =>
      h("span", { key: name, class: "part phase-" + name, style: { width: `${((100 * value) / Math.max(total, 1e-9)).toFixed(2)}%` } })));
}
