// Small helpers for elements, and the axis of scores.

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
