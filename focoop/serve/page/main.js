// What the page needs first: which models there are.

import { $ } from "./draw.js";
import { get } from "./api.js";
import * as ask from "./ask.js";

async function begin() {
  try {
    const found = await get("/v1/models");
    ask.start(found);
    ask.showDrift(found.models);
    setInterval(async () => ask.showDrift((await get("/v1/models").catch(() => ({ models: [] }))).models), 20000);
  } catch (error) {
    $("trouble").hidden = false;
    $("trouble").textContent = `The server cannot be asked: ${error.message}`;
  }
}

begin();
