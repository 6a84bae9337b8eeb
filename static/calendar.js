/* Draw a window over a calendar row with the pointer; a link below then opens the filled-in request form. Without scripts, links do this. */
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const bar = document.getElementById("selection");
  let drawn = null;

  const board = () => document.querySelector(".calendar[data-ask]");
  const clamp = (value) => Math.min(1, Math.max(0, value));

  const clear = () => {
    drawn?.remove();
    drawn = null;
    if (bar) bar.hidden = true;
  };
  const moment = (calendar, share) => {
    const start = Date.parse(calendar.dataset.start), end = Date.parse(calendar.dataset.end);
    const step = Number(calendar.dataset.snap) * 60000;
    return start + Math.round(((end - start) * share) / step) * step;
  };
  const clock = new Intl.DateTimeFormat("en-GB", {
    timeZone: document.documentElement.dataset.zone, weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23",
  });
  const show = (row, from, to, gpus) => {
    const calendar = board();
    const start = Date.parse(calendar.dataset.start), span = Date.parse(calendar.dataset.end) - start;
    if (!drawn) {
      drawn = document.createElementNS(SVG, "svg");
      drawn.append(document.createElementNS(SVG, "rect"), document.createElementNS(SVG, "text"));
      drawn.firstChild.setAttribute("class", "drag-range");
      drawn.firstChild.setAttribute("width", "100%");
      drawn.lastChild.setAttribute("class", "drag-text");
      drawn.lastChild.setAttribute("x", "6");
      drawn.setAttribute("pointer-events", "none");
      row.append(drawn);
    }
    const height = row.getBoundingClientRect().height;
    const most = Number(row.dataset.most) || 8;
    const tall = Math.max(12, (height * gpus) / most);
    drawn.setAttribute("x", `${(100 * (from - start)) / span}%`);
    drawn.setAttribute("width", `${(100 * (to - from)) / span}%`);
    drawn.setAttribute("y", String(Math.max(0, (height - tall) / 2)));
    drawn.setAttribute("height", String(tall));
    drawn.firstChild.setAttribute("height", String(tall));
    drawn.lastChild.setAttribute("y", String(Math.min(tall - 3, tall / 2 + 4)));
    drawn.lastChild.textContent = `${gpus} GPU${gpus > 1 ? "s" : ""}`;
  };
  const offer = (row, from, to, gpus) => {
    const address = new URL(board().dataset.ask, location.href);
    address.search = new URLSearchParams({
      kind: "reservation", target: row.dataset.target, units: String(gpus),
      start: new Date(from).toISOString(), end: new Date(to).toISOString(),
    });
    const model = row.dataset.target.split("|")[1].replaceAll("-", " ");
    bar.querySelector("[data-selection-link]").href = address;
    bar.querySelector("[data-selection-text]").textContent = `Selected: ${gpus} × ${model}, ${clock.format(from)} to ${clock.format(to)}. Whether they are free then is shown before you submit.`;
    bar.hidden = false;
  };

  document.addEventListener("pointerdown", (event) => {
    const row = event.target.closest?.(".calendar[data-ask] svg[data-target]");
    if (!row || !bar || event.button !== 0 || event.pointerType === "touch" || event.target.closest("a")) return;
    event.preventDefault();
    clear();
    const calendar = board();
    const box = row.getBoundingClientRect();
    const share = (at) => clamp((at.clientX - box.left) / box.width);
    const first = moment(calendar, share(event));
    const step = Number(calendar.dataset.snap) * 60000;
    const most = Number(row.dataset.most) || 8;
    let window_ = null;
    const gpus = (at) => {
      const rows = Math.abs(at.clientY - event.clientY);
      return Math.min(most, Math.max(1, Math.round((rows / box.height) * most) || 1));
    };
    const move = (at) => {
      const other = moment(calendar, share(at));
      const earliest = Math.ceil(Date.parse(calendar.dataset.now) / step) * step;
      const from = Math.max(earliest, Math.min(first, other)), to = Math.max(first, other, from + step);
      window_ = [from, to, gpus(at)];
      show(row, ...window_);
    };
    const up = () => {
      document.removeEventListener("pointermove", move);
      document.removeEventListener("pointerup", up);
      if (window_) offer(row, ...window_);
    };
    document.addEventListener("pointermove", move);
    document.addEventListener("pointerup", up);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") clear(); });
  document.addEventListener("click", (event) => { if (event.target.closest("[data-selection-clear]")) clear(); });
  /* Do not refresh the calendar while a window is drawn. */
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (drawn && event.target.matches?.("[data-live-part]")) event.detail.shouldSwap = false;
  });
})();
