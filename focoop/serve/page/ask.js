// The view that answers images.

import { $, element, percent, scoreAxis } from "./draw.js";
import { post } from "./api.js";

const state = { models: [], limits: null, model: null, client: null, items: [], current: 0, turn: 0, moved: false };
const MOST = 200, NAMED = 8; // images at a time, and classes of a set that are named
let later = 0, settled = 0; // timers of a dial that moves, and of a window that does

export function start(found) {
  state.models = found.models;
  state.limits = found.limits;
  $("model").replaceChildren(...found.models.map((m) => element("option", { value: m.name }, m.name)));
  $("model-field").hidden = found.models.length < 2;
  $("model").addEventListener("change", () => choose($("model").value));
  $("client").addEventListener("change", () => { state.client = $("client").value; showDial(); askAgain(); });
  $("dial").addEventListener("input", () => { state.moved = true; showDial(); clearTimeout(later); later = setTimeout(askAgain, 150); });
  $("dial-reset").addEventListener("click", () => { state.moved = false; $("dial").value = state.model.open_share ?? 1; showDial(); askAgain(); });
  $("choose").addEventListener("click", () => $("files").click());
  for (const id of ["files", "camera-files"]) $(id).addEventListener("change", () => { take($(id).files); $(id).value = ""; });
  $("heat").addEventListener("change", show);
  dropAndPaste();
  camera();
  addEventListener("resize", () => { clearTimeout(settled); settled = setTimeout(show, 100); });
  choose(found.models[0].name);
}

function choose(name) {
  state.model = state.models.find((m) => m.name === name);
  const clients = state.model.clients;
  $("client").replaceChildren(...clients.map((c) =>
    element("option", { value: c.name }, c.is_global ? "Nobody in particular (global)" : /^\d+$/.test(c.name) ? `Client ${c.name}` : c.name)));
  state.client = (clients.find((c) => !c.is_global) || clients[0]).name;
  $("client").value = state.client;
  state.moved = false;
  $("dial").value = state.model.open_share ?? 1;
  $("heat-field").hidden = !state.model.explains || !state.items.length;
  showDial();
  askAgain();
}

const side = () => state.model.clients.find((c) => c.name === state.client);
const shown = (name) => (/^\d+$/.test(name) ? `client ${name}` : name);

function showDial() {
  const nobody = side().is_global;
  $("dial").disabled = nobody; // without own classes there is nothing to weigh
  $("dial-value").textContent = nobody ? "" : Number($("dial").value).toFixed(2);
  $("dial-reset").hidden = nobody || !state.moved;
  $("dial-ends").textContent = nobody ? "The global model has no classes of its own." : "0: own classes alone. 1: all classes alike.";
}

function dropAndPaste() {
  const zone = $("drop");
  for (const kind of ["dragover", "dragenter"]) addEventListener(kind, (e) => { e.preventDefault(); zone.classList.add("over"); });
  for (const kind of ["dragleave", "drop"]) addEventListener(kind, (e) => { e.preventDefault(); zone.classList.remove("over"); });
  addEventListener("drop", (e) => take(e.dataTransfer?.files || []));
  addEventListener("paste", (e) => take([...(e.clipboardData?.files || [])]));
}

function camera() {
  const dialog = $("camera-dialog"), video = $("video");
  let stream = null;
  const end = () => { stream?.getTracks().forEach((t) => t.stop()); stream = null; video.srcObject = null; };
  dialog.addEventListener("close", end);
  $("camera-close").addEventListener("click", () => dialog.close());
  $("photograph").addEventListener("click", async () => {
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      $("camera-files").click(); // a phone opens its own camera, other machines a choice of files
      return;
    }
    video.srcObject = stream;
    dialog.showModal();
  });
  $("shoot").addEventListener("click", () => {
    if (!video.videoWidth) return;
    const canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => { dialog.close(); take([new File([blob], "photograph.jpg", { type: "image/jpeg" })]); }, "image/jpeg", 0.95);
  });
}

async function take(files) {
  const chosen = [...files].slice(0, MOST);
  if (!chosen.length) return;
  notice(files.length > MOST ? `The first ${MOST} of ${files.length} images are shown. focoop predict takes any number.` : "");
  const items = await Promise.all(chosen.map(async (file) => ({
    file, answer: null, problem: "", heat: new Map(), picture: await createImageBitmap(file).catch(() => null),
  })));
  for (const item of items) item.file = await fitting(item);
  for (const old of state.items) { old.picture?.close(); if (old.address) URL.revokeObjectURL(old.address); }
  state.items = items;
  state.current = 0;
  show();
  askAgain();
}

function notice(text) {
  $("notice").hidden = !text;
  $("notice").textContent = text;
}

// A photograph with more pixels or bytes than the server takes is sent smaller.
async function fitting(item) {
  const { picture, file } = item;
  if (!picture) return file;
  const excess = (picture.width * picture.height) / state.limits.pixels;
  if (excess <= 1 && file.size <= state.limits.image_bytes) return file;
  const scale = excess > 1 ? 0.98 / Math.sqrt(excess) : 1;
  const canvas = element("canvas", { width: Math.floor(picture.width * scale), height: Math.floor(picture.height * scale) });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob((blob) => done(new File([blob], file.name, { type: "image/jpeg" })), "image/jpeg", 0.95));
}

async function askAgain() {
  const turn = ++state.turn;
  for (const item of state.items) { item.problem = ""; item.heat.clear(); }
  const fields = { model: state.model.name, client: state.client, top: "5" };
  if (state.moved) fields.open_share = $("dial").value;
  let left = [...state.items];
  while (left.length && turn === state.turn) {
    const part = batch(left);
    left = left.slice(part.length);
    try {
      const found = await post("/v1/predict", part.map((item) => item.file), fields);
      if (turn !== state.turn) return;
      found.predictions.forEach((answer, k) => { part[k].answer = answer; });
    } catch (error) {
      if (turn !== state.turn) return;
      const bad = new Map((error.images || []).map((one) => [one.index, one.reason]));
      part.forEach((item, k) => { if (bad.has(k) || !bad.size) { item.answer = null; item.problem = bad.get(k) || error.message; } });
      if (bad.size) left = [...part.filter((_, k) => !bad.has(k)), ...left];
    }
    show();
  }
  if (!state.items.length) show();
}

// As many images as one request may hold.
function batch(items) {
  let bytes = 4096;
  const part = [];
  for (const item of items) {
    bytes += item.file.size + 512;
    if (part.length && (part.length >= state.limits.images || bytes > state.limits.request_bytes)) break;
    part.push(item);
  }
  return part;
}

function show() {
  const item = state.items[state.current];
  $("empty").hidden = Boolean(item);
  showStrip();
  $("heat-field").hidden = !item || !state.model.explains || Boolean(item.problem);
  if (!item) return;
  showPicture(item);
  const answer = item.answer;
  $("details").hidden = !answer;
  if (answer) showAnswer(item, answer);
  else say("", item.problem ? "No answer" : "Looking …", item.problem ? `${item.file.name}: ${item.problem}` : "");
}

function showStrip() {
  const strip = $("strip");
  strip.hidden = state.items.length < 2;
  if (strip.hidden) return void strip.replaceChildren();
  strip.replaceChildren(...state.items.map((item, k) => {
    item.address ??= URL.createObjectURL(item.file);
    const verdict = item.answer ? item.answer.verdict : "";
    const image = element("img", { src: item.address, alt: `${item.file.name}${verdict ? `: ${words(item.answer)[0]}` : ""}` });
    const button = element("button", { type: "button", "data-verdict": verdict, "aria-current": String(k === state.current) }, image);
    button.addEventListener("click", () => { state.current = k; show(); $("strip").children[k].firstChild.focus(); });
    return element("li", {}, button);
  }));
}

// What the verdict says in words: a line and a sentence.
function words(answer) {
  const keep = state.model.keep, best = answer.top[0], sure = percent(answer.probability);
  const holders = best.holders.map(shown).join(", ");
  switch (answer.verdict) {
    case "own": return [`This is: ${answer.label}`, `A class of ${shown(state.client)}. Probability ${sure}.`];
    case "known": return [`This is: ${answer.label}`, `${holders ? `Held by ${holders}` : "A class of the federation"}. Probability ${sure}.`];
    case "other": return [`Another site knows this: ${answer.label}`, `${holders ? `Held by ${holders}` : "A class of another site"}, not by ${shown(state.client)}. Probability ${sure}.`];
    default: return ["I do not know this", `It looks more foreign than ${keep ? percent(keep) : "almost all"} of the known images. Of the known classes ${best.label} would be the closest.`];
  }
}

function say(verdict, line, text) {
  $("answer").dataset.verdict = verdict;
  if ($("verdict-line").textContent !== line) $("verdict-line").textContent = line;
  if ($("verdict-text").textContent !== text) $("verdict-text").textContent = text;
}

function showAnswer(item, answer) {
  const unknown = answer.verdict === "unknown";
  say(answer.verdict, ...words(answer));
  $("bars-title").textContent = unknown ? "If it were a known class" : "Classes";
  $("bars").replaceChildren(...answer.top.map((one) => {
    const fill = element("div", { class: "fill" });
    fill.style.width = `${100 * one.probability}%`;
    const whose = side().is_global ? one.holders.map(shown).join(", ") : one.own ? "own" : one.holders.map(shown).join(", ") || "another site";
    const name = element("span", { class: "name" }, `${one.label} `, element("span", { class: "holds" }, whose));
    return element("li", { class: one.own ? "own" : "" }, name, element("span", { class: "share" }, percent(one.probability)), element("div", { class: "track" }, fill));
  }));
  scoreAxis($("axis"), answer.score, answer.threshold, side().histogram);
  const site = side();
  $("axis-text").textContent = answer.threshold === null
    ? (answer.p_value === null
      ? "This model is not calibrated, so it never says “I do not know this”. Calibrate it: focoop calibrate RUN"
      : `${site.calibrated_on} calibration images are too few for a threshold, so it never says “I do not know this”. Calibrate it with more of them, or with a lower --keep.`)
    : `Bars: ${site.calibrated_on} images that took no part in training. ${answer.p_value === null ? "" : `${percent(answer.p_value)} of such images look at least as foreign.`}`;
  const facts = [["Closest class", answer.nearest_id]];
  if (answer.nearest_ood) facts.push(["Closest foreign word", answer.nearest_ood]);
  if (answer.class_set && !unknown) facts.push([`Right class among (${percent(state.model.keep)})`, listed(answer.class_set)]);
  $("facts").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function listed(names) {
  const more = names.length - NAMED;
  return names.slice(0, NAMED).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

async function showPicture(item) {
  const canvas = $("canvas"), picture = item.picture;
  canvas.hidden = !picture;
  $("no-view").hidden = Boolean(picture);
  $("no-view").textContent = picture ? "" : `${item.file.name} (this browser cannot show it)`;
  if (!picture) return;
  const scale = Math.min(1, 840 / Math.max(picture.width, picture.height)) || 1;
  const grow = Math.max(1, Math.floor(280 / Math.max(picture.width, picture.height)));
  canvas.width = Math.max(1, Math.round(picture.width * scale * grow));
  canvas.height = Math.max(1, Math.round(picture.height * scale * grow));
  canvas.setAttribute("aria-label", item.file.name || "The image");
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = grow === 1;
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  if (!$("heat").checked || !item.answer) return;
  const label = item.answer.top[0].label;
  try {
    if (!item.heat.has(label)) item.heat.set(label, await post("/v1/explain", [item.file], { model: state.model.name, client: state.client, label }));
  } catch (error) {
    $("no-view").hidden = false;
    $("no-view").textContent = `No heat map: ${error.message}`;
    return;
  }
  if (state.items[state.current] === item && $("heat").checked && item.heat.has(label)) overlay(canvas, context, item.heat.get(label));
}

// The model sees the square in the middle of an image.
function overlay(canvas, context, found) {
  const small = element("canvas", { width: found.columns, height: found.rows });
  const pixels = new ImageData(found.columns, found.rows);
  const all = found.values.flat(), low = Math.min(...all), span = Math.max(...all) - low;
  if (span < 1e-6) return; // alike everywhere: nothing to point at
  all.forEach((value, k) => pixels.data.set(colour((value - low) / span), 4 * k));
  small.getContext("2d").putImageData(pixels, 0, 0);
  const edge = Math.min(canvas.width, canvas.height);
  context.imageSmoothingEnabled = true;
  context.globalAlpha = 0.6;
  context.drawImage(small, (canvas.width - edge) / 2, (canvas.height - edge) / 2, edge, edge);
  context.globalAlpha = 1;
}

const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function colour(share) {
  const at = share * (STOPS.length - 1), k = Math.min(Math.floor(at), STOPS.length - 2), part = at - k;
  return [...STOPS[k].map((from, c) => from + (STOPS[k + 1][c] - from) * part), 255];
}

// Says so when a stream of images is not what the model was calibrated for.
export function showDrift(models) {
  const lines = models.flatMap((m) => m.clients.filter((c) => c.drift.state.endsWith("foreign")).map((c) => {
    const d = c.drift;
    return `${m.name}, ${shown(c.name)}: ${d.state} images than calibrated: ${d.flagged} of the last ${d.images} are unknown, ${d.low} to ${d.high} were expected.`;
  }));
  const text = lines.slice(0, 3).join(" ");
  if ($("drift").textContent !== text) $("drift").textContent = text;
}
