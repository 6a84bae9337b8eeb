/* Draw Plotly charts with the colours and fonts of the stylesheet; redraw them when the theme or a part of the page changes.
   A figure names its colours by meaning (see components/plotly.html); a table next to it shows the numbers.
   Plotly is loaded after the first paint, and a chart is drawn when it comes into view. The fragment of the address has
   the charts that are shown as tables ("table=a.b") and the zoom of each time chart ("zoom-a=FROM..UNTIL"). */
"use strict";
(() => {
  const here = document.currentScript;
  const [source, nonce] = [here.dataset.plotly, here.nonce];
  const painted = new Promise((done) => {
    if (!PerformanceObserver.supportedEntryTypes?.includes("paint")) {
      requestAnimationFrame(() => setTimeout(done));
      return;
    }
    const observer = new PerformanceObserver((list) => {
      if (!list.getEntriesByName("first-contentful-paint").length) return;
      observer.disconnect();
      done();
    });
    observer.observe({ type: "paint", buffered: true });
  });
  let loading;
  const plotly = () => {
    loading ||= painted.then(() => new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = source;
      script.nonce = nonce;
      script.onload = () => done(window.Plotly);
      script.onerror = failed;
      document.head.append(script);
    }));
    return loading;
  };

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
    if (trace.type === "heatmap") return { colorscale: scale(), xgap: 1, ygap: 1, colorbar: { tickformat: ".0%", thickness: 12 }, ...trace };
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
    // Only a time axis can be zoomed: its range is in the address.
    ticks: "outside", ticklen: 4, automargin: true, fixedrange: given?.type !== "date", ...given,
    // With a standoff, the margin includes the title. Otherwise the title could be outside the chart.
    title: given?.title ? { font: { size: 12, color: ink.faint }, standoff: 8, ...(given.title.text ? given.title : { text: given.title }) } : undefined,
  });
  const isTime = (figure) => figure.layout?.xaxis?.type === "date";
  const dress = (figure) => {
    const layout = figure.layout;
    const ink = { text: resolve("ink-soft"), faint: resolve("ink-faint"), line: resolve("line"), strong: resolve("line-strong"),
      panel: resolve("panel"), full: resolve("ink") };
    // On a touch screen a swipe must scroll the page and not zoom the chart.
    const zooms = isTime(figure) && !matchMedia("(pointer: coarse)").matches;
    const dressed = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink.text },
      margin: { l: 48, r: 16, t: 8, b: 32 }, bargap: 0.25, showlegend: true,
      hovermode: figure.data.some((trace) => trace.type === "bar") ? "closest" : "x unified",
      dragmode: zooms ? "zoom" : false,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
      hoverlabel: { bgcolor: ink.panel, bordercolor: ink.strong, font: { color: ink.full, size: 12 } },
      ...layout,
    };
    const axes = new Set(["xaxis", "yaxis", ...Object.keys(layout || {}).filter((key) => /^[xy]axis\d*$/.test(key))]);
    for (const name of axes) dressed[name] = axis(layout?.[name], ink);
    dressed.shapes = (layout?.shapes || []).map((shape) => paintShape(shape));
    return dressed;
  };
  const paintShape = (shape) => ({
    ...shape,
    ...(shape.name ? { line: { ...shape.line, color: colour(shape.name) } } : {}),
    ...(shape.type === "rect" && shape.name ? { fillcolor: colour(shape.name) } : {}),
  });

  /* The state of the charts in the fragment of the address. */
  const state = () => new URLSearchParams(location.hash.slice(1));
  const remember = (change) => {
    const kept = state();
    change(kept);
    const text = kept.toString();
    history.replaceState(history.state, "", text ? `#${text}` : location.pathname + location.search);
  };
  const tables = () => (state().get("table") || "").split(".").filter(Boolean);
  // A table has a figure only for its image.
  const idOf = (place) => place.dataset.figure || place.dataset.image;
  const nameOf = (place) => idOf(place).replace(/^figure-/, "");
  const figureOf = (place) => JSON.parse(document.getElementById(idOf(place)).textContent);

  const zoomOf = (place) => {
    const [from, until] = (state().get(`zoom-${nameOf(place)}`) || "").split("..");
    return from && until && !Number.isNaN(Date.parse(from)) && !Number.isNaN(Date.parse(until)) ? [from, until] : null;
  };
  const zoomed = (place, period) => (change) => {
    const [from, until] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (!from) {
      if (change["xaxis.autorange"]) remember((kept) => kept.delete(`zoom-${nameOf(place)}`));
    } else if (period) {
      // The steps that the range touches become the period of the page.
      const shown = period.shown.map((text) => Date.parse(text));
      const first = Math.max(0, shown.findLastIndex((time) => time <= Date.parse(from)));
      const last = shown.findIndex((time) => time >= Date.parse(until));
      const end = last > first ? last : last === -1 ? shown.length - 1 : first + 1;
      const utc = (index) => Date.parse(period.times[index]);
      // "between": minutes between two of the times may be chosen too.
      const within = (text) => {
        const step = Math.min(shown.length - 2, Math.max(0, shown.findLastIndex((time) => time <= Date.parse(text))));
        const share = (Date.parse(text) - shown[step]) / (shown[step + 1] - shown[step]);
        return utc(step) + Math.min(1, Math.max(0, share)) * (utc(step + 1) - utc(step));
      };
      const [low, high] = period.between ? [within(from), Math.max(within(until), within(from) + 60000)] : [utc(first), utc(end)];
      const text = (time) => encodeURIComponent(new Date(time).toISOString().slice(0, 16));
      location.assign(period.period.replace("FROM", text(low)).replace("UNTIL", text(high)) + location.hash);
    } else {
      remember((kept) => kept.set(`zoom-${nameOf(place)}`, `${from}..${until}`));
    }
  };
  const opened = (event) => {
    // A point may name the page behind it: an address of this site in "customdata".
    // A row of a map may name one for all of its cells.
    const address = event.points.map((point) => point.customdata ?? point.data?.meta?.row?.[point.pointIndex?.[0]]).find((given) => /^\/[^/]/.test(given || ""));
    if (address) location.assign(address + (address.split("?")[0] === location.pathname ? location.hash : ""));
  };
  const draw = async (place) => {
    if (!document.getElementById(place.dataset.figure)) return;
    const figure = figureOf(place);
    const layout = dress(figure);
    const zoom = isTime(figure) && zoomOf(place);
    if (zoom) layout.xaxis.range = zoom;
    let library;
    try {
      library = await plotly();
    } catch (missing) {
      show(place.closest(".chart-panel"), "table");
      return;
    }
    await library.react(place, figure.data.map(paint), layout, {
      displaylogo: false, responsive: true, displayModeBar: false, doubleClick: "reset", locale: "en",
    });
    if (place.dataset.drawn) return;
    place.dataset.drawn = "true";
    place.classList.toggle("opens", figure.data.some((trace) => trace.meta?.row || trace.customdata?.flat().some(Boolean)));
    place.on("plotly_click", opened);
    place.on("plotly_relayout", zoomed(place, figure.layout?.meta?.period ? figure.layout.meta : null));
  };
  const redraw = () => { for (const place of document.querySelectorAll("[data-drawn]")) draw(place); };
  const inView = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      inView.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "200px" });

  const show = (panel, kind) => {
    panel.classList.toggle("show-table", kind === "table");
    for (const other of panel.querySelectorAll("[data-show]")) other.setAttribute("aria-pressed", String(other.dataset.show === kind));
  };
  const watch = (within) => {
    const asTables = tables();
    for (const place of within.querySelectorAll?.("[data-figure]") || []) {
      if (asTables.includes(nameOf(place))) show(place.closest(".chart-panel"), "table");
      inView.observe(place);
    }
  };

  /* The image has the title of the panel and the colours of the page. */
  const save = async (panel) => {
    const place = panel.querySelector("[data-figure], [data-image]");
    const figure = figureOf(place);
    const layout = dress(figure);
    const title = panel.querySelector("h2").textContent.trim();
    const size = { width: Math.max(640, place.clientWidth), height: Math.max(320, place.clientHeight, layout.height || 0) + 40 };
    const library = await plotly();
    const image = await library.toImage(
      { data: figure.data.map(paint), layout: { ...layout, ...size, autosize: false, paper_bgcolor: resolve("panel"),
        title: { text: title, x: 0.02, xanchor: "left", font: { size: 14, color: resolve("ink") } },
        margin: { ...layout.margin, t: layout.showlegend ? 72 : 48 } } },
      { format: "png", scale: 2, ...size },
    );
    const link = document.createElement("a");
    link.href = image;
    link.download = `${nameOf(place)}.png`;
    link.click();
  };

  document.addEventListener("click", (event) => {
    const choice = event.target.closest("[data-show]");
    if (choice) {
      const panel = choice.closest(".chart-panel");
      const name = nameOf(panel.querySelector("[data-figure]"));
      show(panel, choice.dataset.show);
      remember((kept) => {
        const others = tables().filter((other) => other !== name);
        const chosen = choice.dataset.show === "table" ? [...others, name] : others;
        if (chosen.length) kept.set("table", chosen.join("."));
        else kept.delete("table");
      });
      return;
    }
    const image = event.target.closest("[data-png]");
    if (image) {
      save(image.closest(".panel"));
      return;
    }
    // A link to the same page with another period or filter keeps the state of the charts.
    const link = event.target.closest("a[href]");
    if (link && !link.download && !link.hash && link.origin === location.origin && link.pathname === location.pathname) {
      link.hash = location.hash;
    }
  });
  document.addEventListener("gpupool:theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("htmx:load", (event) => {
    if (event.target === document.body) return;
    watch(event.target);
    // New figures of a chart that stays on the page.
    for (const source of event.target.querySelectorAll?.('script[type="application/json"]') || []) {
      const place = document.querySelector(`[data-figure="${CSS.escape(source.id)}"][data-drawn]`);
      if (place && !event.target.contains(place)) draw(place);
    }
  });
  document.documentElement.classList.add("charts");
  watch(document);
})();
