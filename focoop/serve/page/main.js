// Tabs, and what every view needs first: which models there are.

import { $ } from "./draw.js";
import { get } from "./api.js";
import * as ask from "./ask.js";
import * as runs from "./runs.js";

const TABS = ["ask", "runs"];

function select(name, focus = false) {
  for (const tab of TABS) {
    const button = $(`tab-${tab}`), chosen = tab === name;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    if (chosen && focus) button.focus();
    $(tab).hidden = !chosen;
  }
  if (name === "runs") runs.open();
  else runs.close();
  history.replaceState(null, "", name === "runs" ? "#runs" : "#");
}

function tabs(watches) {
  $("tab-runs").hidden = !watches;
  const known = TABS.filter((tab) => !$(`tab-${tab}`).hidden);
  for (const tab of known) $(`tab-${tab}`).addEventListener("click", () => select(tab));
  $("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const now = known.findIndex((tab) => $(`tab-${tab}`).getAttribute("aria-selected") === "true");
    select(known[(now + step + known.length) % known.length], true);
  });
  if (watches && location.hash === "#runs") select("runs");
}

async function begin() {
  try {
    const found = await get("/v1/models");
    tabs(found.runs);
    ask.start(found);
    ask.showDrift(found.models);
    setInterval(async () => ask.showDrift((await get("/v1/models").catch(() => ({ models: [] }))).models), 20000);
  } catch (error) {
    $("trouble").hidden = false;
    $("trouble").textContent = `The server cannot be asked: ${error.message}`;
  }
}

begin();
