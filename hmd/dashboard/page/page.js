// SPDX-License-Identifier: MIT
// The page requests state.json once per second and draws it. Nothing that comes from the
// daemon is ever parsed as HTML (elements.js).
import { $ } from "./elements.js";
import { drawCensus, drawMoves, drawShare, drawSweep } from "./figures.js";
import { drawMaps, followMaps, leaveCell, showHeat, showPick } from "./heat_maps.js";
import { showRounds } from "./moves.js";
import { setPageBytes } from "./units.js";
import { showFacts, showKeys, showNotices } from "./summary.js";
import { showTargets, showTiers } from "./targets.js";

const POLL_MS = 1000;
const PATIENCE_MS = 5000;

let shown = "", state = null, sweep = null, failures = 0, paused = false;
const asked = new Map();

async function get(path) {
  const answer = await fetch(path, { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE_MS) });
  return answer.ok ? answer.text() : null;
}
function say(kind, text) {
  document.body.dataset.state = kind;
  if ($("state").textContent !== text) $("state").textContent = text;
}
function draw() {
  if (!state) return;
  document.body.dataset.known = state.status ? "yes" : "no";
  showNotices(state);
  if (state.status) {
    showFacts(state.status);
    showKeys(state);
    showTiers(state.status);
    showTargets(state.status);
    showRounds(state);
    drawCensus(state.status);
    showPick(state.maps, state.status);
  }
  drawShare(state);
  drawMoves(state);
  drawMaps();
}
async function poll() {
  const text = await get("state.json");
  if (text === null) throw new Error("no state");
  if (text !== shown) {
    state = JSON.parse(text);
    shown = text;
    setPageBytes(state.page_bytes);
    draw();
  }
  if (paused) return;
  if (state.reached) say("live", "Live");
  else say("lost", state.status ? "The daemon does not answer; trying again. The data below is old." : "No daemon answers; trying again.");
  document.title = state.reached ? "hmd" : "hmd: no daemon";
}
async function lookAtHeat() {
  const process = $("process").value;
  if (!process) return;
  const path = `heat.json?process=${encodeURIComponent(process)}`;
  $("heat-link").href = path;
  const text = await get(path);
  if (text === null || asked.get("heat") === text) return;
  asked.set("heat", text);
  showHeat(JSON.parse(text));
}
async function keepLooking() {
  if (!paused && !document.hidden) {
    try {
      await poll();
      await lookAtHeat();
      failures = 0;
    } catch {
      failures += 1;
      shown = "";
      say("lost", "hmd dashboard does not answer; trying again. The data below is old.");
    }
  }
  setTimeout(keepLooking, Math.min(POLL_MS * 2 ** failures, 8000));
}
async function begin() {
  followMaps();
  $("process").onchange = () => { asked.delete("heat"); leaveCell(); lookAtHeat().catch(() => {}); };
  $("pause").onclick = () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    if (paused) say("paused", "Paused: the data is not updated.");
  };
  drawMaps();
  keepLooking();
  try { sweep = JSON.parse((await get("sweep.json")) ?? "null"); } catch { sweep = null; }
  drawSweep(sweep);
  const redraw = () => { draw(); drawSweep(sweep); };
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
}
begin();
