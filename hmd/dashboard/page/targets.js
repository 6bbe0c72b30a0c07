// SPDX-License-Identifier: MIT
// Tiers, and the targets and processes whose memory is in them.
import { key } from "./charts.js";
import { $, detailsTable, el, fillTable, svg } from "./elements.js";
import { bytes, count, share } from "./units.js";

export const tierKind = (tier, tiers) => (tier === 0 ? "fast" : tier === tiers - 1 ? "slow" : "middle");
export const tierName = (status, tier) => `tier ${tier} (node ${status.tiers[tier].join(",")})`;

function bar(parts, whole, empty) {
  const drawn = svg("svg", { class: "bar", viewBox: "0 0 1000 18", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: empty, width: 1000, height: 18 }));
  let at = 0;
  for (const [kind, size] of parts) {
    const width = whole ? (1000 * size) / whole : 0;
    if (width > 0) drawn.append(svg("rect", { class: `fill ${kind}`, x: at, width: Math.max(width - 1.5, 0.8), height: 18 }));
    at += width;
  }
  return drawn;
}
export function showTiers(status) {
  const targets = largest(status), tiers = status.tiers.length;
  const served = status.tiers.map((_, tier) => sum(targets.map((t) => t.accesses[tier])));
  $("tiers").replaceChildren(...status.tiers.map((_, tier) => {
    const sizes = targets.map((t) => t.resident_bytes[tier]), used = sizes.reduce((a, b) => a + b, 0);
    const whole = status.tier_bytes[tier];
    const parts = targets.map((t, i) => [`k${Math.min(i + 1, 6)}`, sizes[i], t.name]);
    return el("div", { class: "tier" },
      el("div", { class: `name mark-${tierKind(tier, tiers)}` },
        el("strong", {}, `Tier ${tier}${tiers > 1 && tier === 0 ? ", fastest" : ""} · node ${status.tiers[tier].join(", ")}`),
        el("span", { class: "num" }, `${bytes(used)} of ${bytes(whole)}`)),
      bar(parts, Math.max(whole, used), "empty"),
      el("ul", { class: "legend" }, ...parts.filter(([, size]) => size).slice(0, 6).map(([kind, size, name]) => key(kind, name, bytes(size)))),
      el("p", { class: "hint" }, `served ${share(sum(served) ? served[tier] / sum(served) : null)} of accesses since the start`));
  }));
}
const largest = (status) => [...status.targets].sort((a, b) => sum(b.resident_bytes) - sum(a.resident_bytes));
const sum = (values) => values.reduce((a, b) => a + b, 0);

function cells(row) {
  const whole = sum(row.resident_bytes), tiers = row.resident_bytes.length;
  const split = bar(row.resident_bytes.map((size, t) => [`k-${tierKind(t, tiers)}`, size]), whole, "empty");
  split.setAttribute("class", "bar split");
  return [...row.resident_bytes.map(bytes), split, share(row.fast_share), bytes(row.promoted_bytes), bytes(row.demoted_bytes), count(row.failed_pages)];
}
export function showTargets(status) {
  const numbers = [...status.tiers.map((_, t) => [tierName(status, t), "num"]), ["Placement"], ["Fast share", "num"], ["Promoted", "num"], ["Demoted", "num"], ["Failed pages", "num"]];
  fillTable($("targets"), "", [["Target"], ["Processes", "num"], ...numbers], largest(status).map((t) => [t.name, count(t.process_count), ...cells(t)]));
  detailsTable("processes", "The largest processes", [["Process"], ["PID", "num"], ["Target"], ...numbers], () =>
    status.processes.map((p) => [p.name, String(p.pid), p.target, ...cells(p)]));
}
