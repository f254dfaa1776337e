// Small helpers for elements and SVG charts.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function svg(tag, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

export function percent(share) {
  if (share >= 0.9995) return "100%";
  return share < 0.001 ? "under 0.1%" : `${Number((100 * share).toPrecision(share < 0.1 ? 2 : 3))}%`;
}

function picture(width, height, label) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

// The score of an image on the axis of calibration scores; foreign is right.
export function scoreAxis(place, score, threshold, histogram) {
  const W = Math.max(280, place.clientWidth || 280), H = 134, base = 92, L = 6, R = 6;
  let low = histogram ? histogram.low : score - 1, high = histogram ? histogram.high : score + 1;
  const span = high - low;
  low = Math.min(low, score - 0.05 * span);
  high = Math.max(high, score + 0.05 * span);
  const x = (value) => L + ((value - low) / (high - low)) * (W - L - R);
  const image = picture(W, H, threshold === null
    ? `Score ${score.toFixed(2)}; the model is not calibrated.`
    : `Score ${score.toFixed(2)}, ${score > threshold ? "above" : "below"} the threshold ${threshold.toFixed(2)}.`);
  if (histogram) {
    const most = Math.max(...histogram.counts, 1), width = (histogram.high - histogram.low) / histogram.counts.length;
    histogram.counts.forEach((count, k) => {
      const from = x(histogram.low + k * width), height = (count / most) * 58;
      if (count) image.append(svg("rect", { class: "hist", x: from, y: base - height, width: Math.max(1, x(histogram.low + (k + 1) * width) - from - 1), height }));
    });
  }
  image.append(svg("line", { class: "grid", x1: L, x2: W - R, y1: base, y2: base }));
  if (threshold !== null) {
    const at = x(threshold), half = 62;
    image.append(svg("line", { class: "limit", x1: at, x2: at, y1: 20, y2: base + 6 }));
    image.append(svg("text", { x: Math.min(Math.max(at, half), W - half), y: H - 4, "text-anchor": "middle" }, "unknown from here"));
  }
  const here = x(score), end = here > W - 80 ? "end" : here < 80 ? "start" : "middle";
  image.append(svg("line", { class: "here-line", x1: here, x2: here, y1: 16, y2: base }));
  image.append(svg("circle", { class: "here", cx: here, cy: base, r: 7 }));
  image.append(svg("text", { x: here, y: 11, "text-anchor": end }, "this image"));
  image.append(svg("text", { x: L, y: base + 20 }, "familiar"));
  image.append(svg("text", { x: W - R, y: base + 20, "text-anchor": "end" }, "foreign"));
  place.replaceChildren(image);
}

// Lines by round; `series` are [name, key] and points have `round` and the keys, from 0 to 1.
export function curves(place, points, total, series) {
  const shown = series.filter(([, key]) => points.some((p) => p[key] !== null && p[key] !== undefined));
  if (!shown.length) return void place.replaceChildren(element("p", { class: "soft" }, "No round has been evaluated yet."));
  const W = Math.max(280, place.clientWidth || 280), H = W < 420 ? 190 : 240, L = 40, R = 10, T = 10, B = 28;
  const last = Math.max(total, points.at(-1).round, 1);
  const x = (round) => L + (round / last) * (W - L - R), y = (share) => T + (1 - share) * (H - T - B);
  const image = picture(W, H, shown.map(([name, key]) => `${name}: ${percent(points.at(-1)[key] ?? 0)}`).join(", ") + ` after round ${points.at(-1).round}`);
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    image.append(svg("line", { class: "grid", x1: L, x2: W - R, y1: y(share), y2: y(share) }));
    image.append(svg("text", { x: L - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share}%`));
  }
  image.append(svg("text", { x: L, y: H - 6, "text-anchor": "middle" }, "0"));
  image.append(svg("text", { x: W - R, y: H - 6, "text-anchor": "end" }, `round ${last}`));
  shown.forEach(([, key], k) => {
    const known = points.filter((p) => p[key] !== null && p[key] !== undefined);
    const path = known.map((p, i) => `${i ? "L" : "M"}${x(p.round)} ${y(p[key])}`).join("");
    image.append(svg("path", { class: `line s${k}`, d: path }));
    for (const p of known) image.append(svg("circle", { class: `s${k}`, cx: x(p.round), cy: y(p[key]), r: 3 }));
  });
  const legend = element("ul", { class: "legend" }, ...shown.map(([name, key], k) =>
    element("li", { class: `s${k}` }, element("i"), `${name} ${percent(points.at(-1)[key] ?? 0)}`)));
  const head = element("tr", {}, element("th", { scope: "col" }, "round"), ...shown.map(([name]) => element("th", { scope: "col" }, name)));
  const rows = points.map((p) => element("tr", {}, element("td", {}, String(p.round)), ...shown.map(([, key]) => element("td", {}, p[key] === null || p[key] === undefined ? "" : percent(p[key])))));
  const open = place.querySelector("details")?.open;
  const table = element("details", {}, element("summary", {}, "Numbers"),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Numbers by round" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
  if (open) table.open = true;
  place.replaceChildren(image, legend, table);
}

// A grid of small cells: `cells` are [row, column, strength from 0 to 1].
export function matrix(place, rows, columns, cells, label, kind, note) {
  const W = Math.max(280, place.clientWidth || 280), L = Math.min(110, 16 + 7 * Math.max(...rows.map((r) => r.length), 2));
  const height = rows.length > 24 ? 10 : 18, H = rows.length * height + 4, width = Math.min(36, (W - L) / Math.max(columns, 1));
  const image = picture(W, H, label);
  rows.forEach((name, r) => {
    image.append(svg("rect", { class: "row", x: L, y: r * height + 1, width: width * columns, height: height - 2 }));
    image.append(svg("text", { x: L - 6, y: r * height + height / 2 + 4, "text-anchor": "end" }, name.length > 14 ? `${name.slice(0, 13)}…` : name));
  });
  for (const [r, c, strength] of cells) {
    image.append(svg("rect", { class: kind, x: L + c * width, y: r * height + 1, width: Math.max(1, width - (width > 4 ? 1 : 0)), height: height - 2, opacity: 0.25 + 0.75 * strength }));
  }
  place.replaceChildren(image, element("p", { class: "soft" }, note));
}
