// SPDX-License-Identifier: MIT
// Recent moves with their reasons, and the pages that could not be moved.
import { $, detailsTable, el, fillTable } from "./elements.js";
import { REASONS } from "./reasons.js";
import { PAGE_BYTES, bytes, clock, count, short } from "./units.js";

const ROUNDS = 8; // that are shown; state.json has more

const word = (reason) => (REASONS[reason] ?? [reason.replaceAll("_", " "), ""])[0];
const meaning = (reason) => (REASONS[reason] ?? ["", ""])[1];
const tierOf = (status, node) => status.tiers.findIndex((nodes) => nodes.includes(node));

function direction(status, flow) {
  const change = tierOf(status, flow.to_node) - tierOf(status, flow.from_node);
  return change < 0 ? "up" : change > 0 ? "down" : "across";
}
// The mean heat of all pages of a round that go one way; null where none do.
function meanHeat(status, flows, way) {
  const found = flows.filter((f) => direction(status, f) === way);
  const pages = found.reduce((sum, f) => sum + f.planned_pages, 0);
  return pages ? found.reduce((sum, f) => sum + f.heat * f.planned_pages, 0) / pages : null;
}
const manifold = (ratio) => (ratio >= 10 ? ratio.toFixed(0) : ratio.toFixed(1));
function why(status, round, flow) {
  const way = direction(status, flow);
  if (way === "across") return "to another node of its tier";
  const other = meanHeat(status, round.flows, way === "up" ? "down" : "up");
  if (way === "up") {
    if (other === null) return "hot, and there was room";
    if (other <= 0) return "hot; what made room for it had no heat";
    return `${manifold(flow.heat / other)} times as hot as what made room for it`;
  }
  if (other === null) return "nothing came up: room to keep free, or a limit";
  return flow.heat <= 0 ? "without heat: makes room for hot pages" : `makes room for pages ${manifold(other / flow.heat)} times as hot`;
}
function outcome(flow) {
  const rest = Object.entries(flow.left).sort((a, b) => b[1] - a[1]);
  return rest.length ? rest.map(([reason, pages]) => `${count(pages)} ${word(reason)}`).join(", ") : "all moved";
}

export function showRounds(state) {
  const status = state.status, rows = [];
  for (const round of state.rounds.slice(0, ROUNDS))
    round.flows.forEach((flow, i) => {
      const way = direction(status, flow);
      rows.push([el("span", { class: i ? "same" : "" }, clock(round.at_s)), flow.target || "-",
        el("span", { class: way }, `${{ up: "▲ up", down: "▼ down", across: "↔ across" }[way]}, node ${flow.from_node} → ${flow.to_node}`),
        bytes(flow.planned_pages * PAGE_BYTES), bytes(flow.moved_pages * PAGE_BYTES), short(Math.max(flow.heat, 0)), why(status, round, flow), outcome(flow)]);
    });
  $("policy").textContent = `Policy ${status.policy} decides (hmd policy show ${status.policy}); heat is the mean of accesses per page and second.`;
  if (rows.length) fillTable($("rounds"), "", [["Time"], ["Target"], ["Direction"], ["Planned", "num"], ["Moved", "num"], ["Heat", "num"], ["Reason", "wrap"], ["Outcome of the planned pages", "wrap"]], rows);
  else $("rounds").replaceChildren(el("caption", {}, "No moves were planned in the last minutes."));
  const failures = Object.entries(status.moves.failures).sort((a, b) => b[1] - a[1]);
  $("failures").hidden = !failures.length;
  detailsTable("failures", "Pages that could not be moved, since the start", [["Reason"], ["Pages", "num"], ["Meaning", "wrap"]], () =>
    failures.map(([reason, pages]) => [word(reason), count(pages), meaning(reason)]));
}
