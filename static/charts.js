/* Draw Plotly charts with the colours and fonts of the stylesheet; redraw them when the theme or a part of the page changes.
   A figure names its colours by meaning (see components/plotly.html); a table next to it shows the numbers. */
"use strict";
(() => {
  const resolve = (() => {
    const probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
    const canvas = document.createElement("canvas").getContext("2d");
    return (name) => {
      probe.style.color = `var(--${name})`;
      canvas.fillStyle = getComputedStyle(probe).color;
      return canvas.fillStyle;
    };
  })();
  const NAMES = { accent: "accent", ink: "ink", rest: "line-strong", edge: "edge", ok: "ok", warn: "warn", bad: "bad" };
  const colour = (meaning) => resolve(NAMES[meaning] || meaning);
  const scale = () => [0, 1, 2, 3, 4, 5, 6].map((step) => [step / 6, resolve(`use-${step}`)]);

  const paint = (trace) => {
    const meaning = trace.meta?.colour;
    if (trace.type === "heatmap") return { colorscale: scale(), xgap: 1, ygap: 1, ...trace };
    if (!meaning) return trace;
    const own = Array.isArray(meaning) ? meaning.map(colour) : colour(meaning);
    return {
      ...trace,
      marker: { color: own, ...trace.marker },
      line: { color: Array.isArray(own) ? own[0] : own, width: 1.5, ...trace.line },
      ...(trace.meta.fill ? { fillcolor: colour(trace.meta.fill) } : {}),
    };
  };
  const axis = (given, ink) => ({
    gridcolor: ink.line, linecolor: ink.strong, zerolinecolor: ink.strong, tickcolor: ink.strong,
    ticks: "outside", ticklen: 4, automargin: true, fixedrange: false, ...given,
    // With a standoff, the margin includes the title. Otherwise the title could be outside the chart.
    title: given?.title ? { font: { size: 12, color: ink.faint }, standoff: 8, ...(given.title.text ? given.title : { text: given.title }) } : undefined,
  });
  const dress = (layout) => {
    const ink = { text: resolve("ink-soft"), faint: resolve("ink-faint"), line: resolve("line"), strong: resolve("line-strong"),
      panel: resolve("panel"), full: resolve("ink") };
    const dressed = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink.text },
      margin: { l: 48, r: 16, t: 8, b: 32 }, hovermode: "x unified", bargap: 0.25, showlegend: true,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
      hoverlabel: { bgcolor: ink.panel, bordercolor: ink.strong, font: { color: ink.full, size: 12 } },
      ...layout,
    };
    const axes = new Set(["xaxis", "yaxis", ...Object.keys(layout || {}).filter((key) => /^[xy]axis\d*$/.test(key))]);
    for (const name of axes) dressed[name] = axis(layout?.[name], ink);
    return dressed;
  };
  const draw = (place) => {
    const source = document.getElementById(place.dataset.figure);
    if (!source) return;
    const figure = JSON.parse(source.textContent);
    window.Plotly.react(place, figure.data.map(paint), dress(figure.layout), {
      displaylogo: false, responsive: true, displayModeBar: false, doubleClick: "reset", locale: "en",
    }).then(() => {
      if (place.dataset.opens) return;
      place.dataset.opens = "true";
      // A point may name the page behind it: an address of this site in "customdata".
      place.on("plotly_click", (event) => {
        const address = event.points.map((point) => point.customdata).find((given) => /^\/[^/]/.test(given || ""));
        if (address) location.assign(address);
      });
    });
  };
  const drawAll = () => { for (const place of document.querySelectorAll("[data-figure]")) draw(place); };

  document.addEventListener("click", (event) => {
    const choice = event.target.closest("[data-show]");
    if (!choice) return;
    const panel = choice.closest(".chart-panel");
    panel.classList.toggle("show-table", choice.dataset.show === "table");
    for (const other of panel.querySelectorAll("[data-show]")) other.setAttribute("aria-pressed", String(other === choice));
    if (choice.dataset.show === "chart") draw(panel.querySelector("[data-figure]"));
  });
  document.addEventListener("gpupool:theme", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.addEventListener("htmx:load", (event) => {
    for (const place of event.target.querySelectorAll?.("[data-figure]") || []) draw(place);
  });
  document.documentElement.classList.add("charts");
  drawAll();
})();
