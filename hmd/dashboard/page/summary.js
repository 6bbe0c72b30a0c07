// SPDX-License-Identifier: MIT
// Facts about the daemon, notices and key figures.
import { $, el } from "./elements.js";
import { PAGE_BYTES, age, bytes, clock, count, rate, seconds, share } from "./units.js";

export function showFacts(status) {
  const facts = [
    ["Version", status.version], ["Process", String(status.pid)], ["Up", age(status.uptime_s)], ["Last tick", clock(status.started_s + status.uptime_s)],
    ["Ticks", `${count(status.ticks)} of ${Number(status.tick_s.toPrecision(6))} s`], ["Policy", status.policy],
    ["Sampler", `${status.sampler.name}, period ${count(status.sampler.period)}`], ["Configuration", status.config_file],
  ];
  $("facts").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export function showNotices(state) {
  const notices = [];
  if (!state.reached) notices.push(state.error);
  if (state.quiet_s) notices.push(`The daemon answers, but has completed no tick for ${state.quiet_s} s: see its log.`);
  const status = state.status;
  if (status) {
    // Rings lose samples of all programs: those that other programs had count too.
    const { lost, samples, dropped } = status.sampler, taken = lost + samples + dropped;
    const failed = Object.entries(status.stage_failures).filter(([, n]) => n);
    if (status.compiling) notices.push("Compiling kernels: no process is followed until then.");
    for (const target of status.targets) {
      if (target.empty_reason) notices.push(`Target ${target.name}: ${target.empty_reason}.`);
      if (target.known < 0.95) notices.push(`Target ${target.name}: ${share(target.known)} of its memory is known page by page; the rest is by the kernel's totals.`);
    }
    if (status.dry_run) notices.push("Dry run: no pages are moved.");
    for (const { name, dry_run, would } of status.targets)
      if (dry_run && would.seconds)
        notices.push(`Dry run of ${name} for ${age(would.seconds)}: would have moved ${bytes(would.promoted_bytes)} up and ${bytes(would.demoted_bytes)} down, and saved ${seconds(would.saved_s - would.lost_s)} of waiting for memory.`);
    if (state.restored) notices.push(`Restored at the start: ${state.restored}.`);
    if (state.not_restored) notices.push(`Not restored at the start: ${state.not_restored}`);
    if (status.tiers.length < 2) notices.push("Only one memory tier: pages cannot be moved (hmd topology).");
    if (status.sampler.name === "faults") notices.push("No PMU: page faults replace access samples, which is less precise (hmd doctor).");
    if (!status.reload.successful) notices.push(`The last reload failed, the previous settings are in force: ${status.reload.error}`);
    if (failed.length) notices.push(`Stages that failed since the start: ${failed.map(([stage, n]) => `${stage} ${count(n)}`).join(", ")}; see the daemon's log.`);
    if (lost > 0.01 * taken) notices.push(`${share(lost / taken)} of the samples were lost: a longer period helps.`);
  }
  const list = $("notices");
  if ([...list.children].map((li) => li.textContent).join("\n") !== notices.join("\n"))
    list.replaceChildren(...notices.map((text) => el("li", {}, text)));
  list.hidden = !notices.length;
}

export function showKeys(state) {
  const { status, series } = state, moves = status.moves;
  const now = series.fast_share.findLast((v) => v !== null) ?? null;
  const figures = [
    ["Fast share", share(now), "of accesses, tier 0"],
    ["Promoted", bytes(moves.promoted_bytes), `${rate(series.promoted_bytes_per_s.at(-1) ?? null)} now`],
    ["Demoted", bytes(moves.demoted_bytes), `${rate(series.demoted_bytes_per_s.at(-1) ?? null)} now`],
    ["Saved", seconds(status.savings.realised_saved_s - status.savings.realised_lost_s), "of waiting for memory"],
    ["Not moved", bytes(moves.failed_pages * PAGE_BYTES), `of ${bytes(moves.planned_pages * PAGE_BYTES)} planned`],
    ["Samples", count(status.sampler.samples), `${count(status.sampler.lost)} lost`],
    ["The daemon itself", `${((status.cpu_s / Math.max(status.uptime_s, 1)) * 100).toFixed(1)} % CPU`, bytes(status.resident_bytes)],
  ];
  if (status.profiles.processes || status.profiles.saved_s)
    figures.push(["Saved by profiles", seconds(status.profiles.saved_s), `of former runs; ${count(status.profiles.processes)} processes have one`]);
  $("keys").replaceChildren(...figures.map(([name, value, more]) =>
    el("div", {}, el("dt", {}, name), el("dd", { class: "value" }, value), el("dd", { class: "more" }, more))));
}
