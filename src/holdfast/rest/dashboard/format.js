// Numbers, sizes and times as people read them.

export function count(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  const size = Math.abs(n);
  if (size >= 1e9) return trim(n / 1e9) + "G";
  if (size >= 1e6) return trim(n / 1e6) + "M";
  if (size >= 1e4) return trim(n / 1e3) + "k";
  if (size >= 10 || Number.isInteger(n)) return Math.round(n).toLocaleString("en");
  return n.toFixed(1);
}

const trim = (n) => (Math.abs(n) >= 100 ? n.toFixed(0) : Math.abs(n) >= 10 ? n.toFixed(1) : n.toFixed(2)).replace(/\.0+$/, "");

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return (unit === "B" || n >= 100 ? n.toFixed(0) : n.toFixed(1)) + " " + unit;
    n /= 1024;
  }
  return n.toFixed(1) + " TiB";
}

export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return ms === 0 ? "0 ms" : ms.toFixed(1) + " ms";
  if (ms < 1000) return Math.round(ms) + " ms";
  let s = Math.floor(ms / 1000);
  if (s < 60) return (ms / 1000).toFixed(s < 10 ? 1 : 0).replace(/\.0$/, "") + " s";
  const parts = [];
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const amount = Math.floor(s / length);
    s %= length;
    if (amount) parts.push(amount + " " + unit);
  }
  return parts.slice(0, 2).join(" ");
}

export const percent = (share) => Math.round(100 * Math.min(1, Math.max(0, share))) + " %";

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

export const moment = (ms) => {
  const at = new Date(ms), pad = (n) => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(ms)}`;
};

export const dollars = (n) => (n >= 100 ? Math.round(n).toLocaleString("en") : n.toFixed(2)) + " $";
