// The view that watches runs.

import { $, curves, element, matrix } from "./draw.js";
import { follow, get } from "./api.js";

const SERIES = [["own classes", "accuracy_own"], ["all classes", "accuracy_all"], ["OOD found (AUROC)", "auroc"], ["OOD missed (FPR95)", "fpr95"]];
const MOST = 50; // clients that a chart shows
let chosen = "", seen = null, stop = null, timer = 0;

export function open() {
  list();
  timer = setInterval(list, 3000);
}

export function close() {
  clearInterval(timer);
  stop?.abort();
  chosen = "";
}

async function list() {
  let runs;
  try {
    runs = (await get("/v1/runs")).runs;
  } catch {
    return; // the next look tells
  }
  $("no-runs").hidden = runs.length > 0;
  const focused = document.activeElement?.dataset?.run;
  $("run-list").replaceChildren(...runs.map((run) => {
    const small = element("small", {}, `${run.method}, ${run.status}, round ${run.round} of ${run.total}`);
    const button = element("button", { type: "button", "data-run": run.name, "aria-current": String(run.name === chosen) }, run.name, small);
    button.addEventListener("click", () => watch(run.name));
    return element("li", {}, button);
  }));
  if (focused) [...$("run-list").querySelectorAll("button")].find((b) => b.dataset.run === focused)?.focus();
  if (!chosen && runs.length) watch(runs[0].name);
}

async function watch(name) {
  stop?.abort();
  const mine = (stop = new AbortController());
  chosen = name;
  for (const button of $("run-list").querySelectorAll("button")) button.setAttribute("aria-current", String(button.dataset.run === name));
  while (!mine.signal.aborted) {
    try {
      await follow(`/v1/runs/${name.split("/").map(encodeURIComponent).join("/")}/events`, (kind, run) => { if (kind === "run" && chosen === name) show(name, run); }, mine.signal);
    } catch {
      if (mine.signal.aborted) return;
    }
    await new Promise((go) => setTimeout(go, 2000)); // the server was restarted: try again
  }
}

function show(name, run) {
  seen = [name, run];
  $("run-name").textContent = name;
  const done = run.round >= run.total ? "" : `, round ${run.round} of ${run.total}`;
  const text = `${run.title}. ${run.method}, ${run.status}${done}.`;
  if ($("run-state").textContent !== text) $("run-state").textContent = text;
  $("run-progress").hidden = false;
  $("run-progress").max = run.total || 1;
  $("run-progress").value = run.round;
  curves($("curves"), run.curves, run.total, SERIES);
  showPartition(run.partition);
  showRounds(run);
}

function showPartition(partition) {
  if (!partition) return void $("partition").replaceChildren(element("p", { class: "soft" }, "This run does not tell who holds what."));
  const clients = partition.clients.slice(0, MOST);
  const most = Math.max(1, ...clients.flatMap((c) => c.held.map(([, n]) => n)));
  const cells = clients.flatMap((c, row) => c.held.map(([k, n]) => [row, k, n / most]));
  const total = partition.clients.reduce((sum, c) => sum + c.images, 0);
  const more = partition.clients.length > MOST ? ` The first ${MOST} of ${partition.clients.length} clients are shown.` : "";
  const label = `${partition.clients.length} clients hold ${total} training images of ${partition.classes.length} classes.`;
  matrix($("partition"), clients.map((c) => c.name), partition.classes.length, cells, label, "cell", `${label} A column is a class; a stronger colour means more images.${more}`);
}

function showRounds(run) {
  if (!run.rounds.length) return void $("rounds").replaceChildren(element("p", { class: "soft" }, "No round is done yet."));
  const last = run.rounds.slice(-100), names = run.partition?.clients.map((c) => c.name);
  const count = Math.max(names?.length || 0, ...last.flatMap((r) => r.participants.map((k) => k + 1)));
  const rows = Array.from({ length: Math.min(count, MOST) }, (_, k) => names?.[k] ?? String(k));
  const cells = last.flatMap((r, column) => r.participants.filter((k) => k < rows.length).map((k) => [k, column, 1]));
  const latest = last.at(-1), seconds = latest.seconds ? `, ${latest.seconds.toFixed(1)} s` : "";
  const label = `Round ${latest.round}: ${latest.participants.length} of ${count} clients took part${seconds}.`;
  matrix($("rounds"), rows, Math.max(last.length, Math.min(run.total, 100)), cells, label, "took", `${label} A column is a round.`);
}

addEventListener("resize", () => { if (seen && !$("runs").hidden) show(...seen); });
