// Draws the charts of a report with uPlot, in the colours of the theme, when they come into view.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  // Okabe and Ito's colours, which the colour-blind tell apart; then the same with dashes.
  const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#a8497d", "#946c00", "#444444"];
  const DARK = ["#56b4e9", "#ff9e5e", "#3fd1a6", "#e79cc6", "#f0e442", "#cccccc"];
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const root = document.documentElement;
  const dark = () => root.dataset.theme === "dark";
  const colour = (i) => (dark() ? DARK : LIGHT)[i % LIGHT.length];
  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const places = new Map(); // a method keeps its colour in all charts

  function place(name) {
    if (!places.has(name)) places.set(name, places.size);
    return places.get(name);
  }

  // uPlot wants one axis of x for all lines.
  function joined(lines) {
    const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const column = (line, key) => {
      const at = new Map(line.x.map((x, i) => [x, line[key][i]]));
      return xs.map((x) => at.get(x) ?? null);
    };
    return [xs, column];
  }

  function markAt(value) {
    return {
      hooks: {
        draw: (u) => {
          const x = Math.round(u.valToPos(value, "x", true));
          u.ctx.save();
          u.ctx.strokeStyle = style("--ink");
          u.ctx.lineWidth = 2 * devicePixelRatio;
          u.ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
          u.ctx.beginPath();
          u.ctx.moveTo(x, u.bbox.top);
          u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
          u.ctx.stroke();
          u.ctx.restore();
        },
      },
    };
  }

  // An axis of a percentage point at least: on a shorter one rounding and noise look like news.
  function percents(u, low, high) {
    if (low == null) return [0, 100];
    const lack = Math.max(0, 1 - (high - low)) / 2;
    const from = Math.max(0, Math.min(low - lack, 100 - 2 * lack));
    const to = Math.min(100, Math.max(high + lack, from + 2 * lack));
    return uPlot.rangeNum(from, to, 0.1, true);
  }

  function draw(box, chart) {
    box.querySelector(".uplot")?.remove();
    const [xs, column] = joined(chart.lines);
    const data = [xs];
    const series = [{ label: chart.x }];
    const bands = [];
    const shown = (u, value) => (value == null ? "" : String(Number(value.toPrecision(4))));
    series[0].value = shown;
    let next = 0;
    for (const line of chart.lines) {
      const i = chart.methods ? place(line.name) : line.soft || line.own ? 0 : next++;
      const ink = line.soft ? style("--faint") : line.own ? style("--ink") : colour(i);
      const dash = DASHES[Math.floor(i / LIGHT.length) % DASHES.length];
      data.push(column(line, "y"));
      series.push({
        label: line.name, stroke: ink, width: line.soft ? 1 : 2, dash, class: line.soft ? "hidden" : undefined,
        spanGaps: true, value: shown, points: { show: !line.soft && (chart.points || line.x.length < 3), size: 7 },
        paths: chart.kind === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined,
      });
      if (line.low) {
        data.push(column(line, "high"), column(line, "low"));
        const hidden = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false }, class: "hidden" };
        series.push({ ...hidden, label: "" }, { ...hidden, label: "" });
        bands.push({ series: [data.length - 2, data.length - 1], fill: ink + "2e" });
      }
    }
    const axis = { stroke: style("--ink"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
    const digits = (u, values) => values.map((value) => (value == null ? "" : String(Number(value.toPrecision(6)))));
    const whole = chart.x === "round" ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] } : {};
    const wide = Math.max(240, box.clientWidth);
    const x = chart.log ? { time: false, distr: 3, log: chart.log } : { time: false };
    if (chart.mark !== undefined) {
      const low = Math.min(xs[0], chart.mark), high = Math.max(xs.at(-1), chart.mark), rim = 0.02 * (high - low || 1);
      x.range = () => [low - rim, high + rim]; // the threshold is seen, also where no score reaches it
    }
    const y = chart.title.endsWith("%") ? { range: percents } : {};
    const plot = new uPlot({
      width: wide, height: 230, series, bands, scales: { x, y },
      axes: [{ ...axis, label: chart.x, size: 30, labelSize: 20, ...whole }, { ...axis, size: 58, values: digits }],
      plugins: chart.mark === undefined ? [] : [markAt(chart.mark)],
      legend: { live: true, markers: { fill: (u, i) => (series[i].dash?.length ? "transparent" : series[i].stroke) } },
      cursor: { y: false },
    }, data, box);
    plot.root.querySelectorAll(".u-legend .u-series.hidden").forEach((row) => row.remove());
  }

  function build(holder) {
    const { setting, kind } = holder.dataset;
    for (const chart of charts[setting][kind]) {
      const box = document.createElement("div");
      box.className = "chart";
      const title = document.createElement("h4");
      title.textContent = chart.title;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", chart.title + ": " + chart.lines.filter((line) => !line.soft).map((line) => `${line.name} ends at ${line.y.at(-1)}`).join("; "));
      box.append(title);
      holder.append(box);
    }
    // All boxes are there before the first is drawn: their number decides how wide they are.
    drawAll(holder);
  }

  function drawAll(holder) {
    const { setting, kind } = holder.dataset;
    holder.querySelectorAll(".chart").forEach((box, i) => draw(box, charts[setting][kind][i]));
  }

  const holders = [...document.querySelectorAll(".charts")];
  for (const holder of holders) {
    for (const chart of charts[holder.dataset.setting][holder.dataset.kind]) {
      if (chart.methods) for (const line of chart.lines) place(line.name);
    }
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !entry.target.dataset.built) {
        entry.target.dataset.built = "yes";
        build(entry.target);
      }
    }
  }, { rootMargin: "600px" });
  for (const holder of holders) {
    // Room for what will be drawn, so that the page does not jump.
    holder.style.minHeight = "120px";
    seen.observe(holder);
  }
  const isShown = (holder) => holder.checkVisibility();
  function buildAll() {
    for (const holder of holders.filter(isShown)) {
      if (!holder.dataset.built) { holder.dataset.built = "yes"; build(holder); }
    }
  }
  function redraw() {
    for (const holder of holders) {
      if (!holder.dataset.built) continue;
      if (isShown(holder)) drawAll(holder);
      else { holder.replaceChildren(); delete holder.dataset.built; } // folded: drawn when seen again
    }
  }
  // A link into a folded section opens it.
  function open(hash) {
    const target = hash.length > 1 && document.getElementById(hash.slice(1));
    if (!target) return;
    const folds = [target.querySelector(":scope > details")];
    for (let at = target.closest("details"); at; at = at.parentElement.closest("details")) folds.push(at);
    for (const fold of folds) if (fold) fold.open = true;
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) open(link.hash);
  });
  addEventListener("hashchange", () => open(location.hash));
  open(location.hash);
  const button = document.getElementById("theme");
  function choose(theme) {
    root.dataset.theme = theme;
    button.setAttribute("aria-pressed", String(theme === "dark"));
    redraw();
  }
  choose(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  button.addEventListener("click", () => choose(dark() ? "light" : "dark"));
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 150); });
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; choose("light"); buildAll(); });
  addEventListener("afterprint", () => choose(before));
})();
