/* Enhancements of pages that also work without scripts. No inline handlers, no eval: safe under a strict CSP. */
"use strict";
(() => {
  const root = document.documentElement;
  const YEAR = 365 * 24 * 3600;
  const remember = (name, value) => {
    document.cookie = `${name}=${encodeURIComponent(value)}; path=/; samesite=lax; max-age=${value ? YEAR : 0}`;
  };

  /* Theme: system, light, dark. The server reads the cookie and renders the theme, so that pages do not flash. */
  const THEMES = ["", "light", "dark"];
  const THEME_WORDS = { "": "System theme", light: "Light theme", dark: "Dark theme" };
  const setTheme = (theme) => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    remember("theme", theme);
    showTheme();
    document.dispatchEvent(new CustomEvent("gpupool:theme"));
  };
  const showTheme = () => {
    const theme = root.dataset.theme || "";
    for (const toggle of document.querySelectorAll("[data-theme-toggle]")) {
      toggle.hidden = false;
      toggle.querySelector("span").textContent = THEME_WORDS[theme];
    }
    for (const choice of document.querySelectorAll("[data-set-theme]")) {
      choice.setAttribute("aria-pressed", String(choice.dataset.setTheme === theme));
    }
  };

  /* Times: the server renders them in one zone for the whole page. If the server did not know the browser's zone,
     the cookie names it, and the page is loaded again once. */
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const nameZone = () => {
    const known = `tz=${encodeURIComponent(zone)}`;
    const had = document.cookie.includes(known);
    remember("tz", zone);
    const guessed = root.hasAttribute("data-zone-guessed") && root.dataset.zone !== zone;
    if (guessed && !had && document.cookie.includes(known)) location.reload();
  };
  const duration = (seconds) => {
    if (seconds < 60) return `${seconds} s`;
    const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    if (minutes < 60) return `${minutes} min`;
    if (days < 2) return minutes % 60 ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min` : `${hours} h`;
    return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
  };
  const relative = (seconds) => {
    if (Math.abs(seconds) <= 1) return "now";
    return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
  };
  const tick = () => {
    for (const time of document.querySelectorAll("time[data-relative]")) {
      const seconds = Math.round((Date.now() - new Date(time.dateTime)) / 1000);
      const text = relative(seconds);
      if (time.textContent !== text) time.textContent = text;
      const live = time.closest("[data-stale-after]");
      if (!live) continue;
      const stale = seconds > Number(live.dataset.staleAfter);
      const word = live.querySelector("[data-live]");
      live.classList.toggle("stale", stale);
      word.textContent = stale ? word.dataset.stale : word.dataset.live;
    }
  };

  /* Copy: data-copy="#id" copies the text of that element. */
  const copy = async (button) => {
    const source = document.querySelector(button.dataset.copy);
    if (!source) return;
    const text = "value" in source ? source.value : source.textContent;
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.");
    } catch (refused) {
      window.getSelection().selectAllChildren(source);
      toast("Your browser blocked copying. The text is selected: press Ctrl C.");
    }
  };
  const toast = (text) => {
    const place = document.getElementById("toasts");
    if (!place) return;
    const shown = document.createElement("div");
    shown.className = "toast";
    shown.textContent = text;
    place.replaceChildren(shown);
    setTimeout(() => shown.remove(), 4000);
  };

  /* Confirm: a form or button with data-confirm opens a dialog; the request then has confirmed=1. */
  const ask = (text, label) => new Promise((answer) => {
    const dialog = document.getElementById("confirm");
    dialog.querySelector("#confirm-title").textContent = `${label}?`;
    dialog.querySelector("[data-confirm-text]").textContent = text;
    dialog.querySelector("[data-confirm-yes]").textContent = label;
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
  });
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    const source = event.submitter?.dataset.confirm ? event.submitter : form;
    if (!source.dataset.confirm || form.dataset.confirmed || form.matches("[hx-post]")) return;
    event.preventDefault();
    if (!(await ask(source.dataset.confirm, source.dataset.confirmLabel || "Continue"))) return;
    // A refresh may have removed the form while the dialog was open: append it again, so that it can be submitted.
    if (!form.isConnected) {
      form.hidden = true;
      document.body.append(form);
    }
    const mark = document.createElement("input");
    mark.type = "hidden";
    mark.name = "confirmed";
    mark.value = "1";
    form.append(mark);
    form.dataset.confirmed = "1";
    form.requestSubmit(event.submitter);
  });
  document.addEventListener("htmx:confirm", (event) => {
    const source = event.detail.elt;
    if (!source.dataset.confirm) return;
    event.preventDefault();
    ask(source.dataset.confirm, source.dataset.confirmLabel || "Continue").then((yes) => {
      if (yes) event.detail.issueRequest(true);
    });
  });
  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.elt.dataset.confirm) event.detail.parameters.confirmed = "1";
  });

  /* Search dialog: pages are found in the browser, rows on the server while the user types; arrow keys select, Enter opens. */
  const palette = document.getElementById("palette");
  const offered = () => [...palette.querySelectorAll("[role=option]")].filter((option) => !option.hidden);
  const choose = (option) => {
    for (const other of palette.querySelectorAll("[aria-selected]")) other.removeAttribute("aria-selected");
    option?.setAttribute("aria-selected", "true");
    option?.scrollIntoView({ block: "nearest" });
  };
  /* Before typing, the pages of the navigation are offered. Then the server answers, the best match first. */
  let openFirst = false; // Enter was pressed before the answer
  const offerPages = () => {
    const empty = !palette.querySelector("input").value.trim();
    for (const page of palette.querySelectorAll("[data-pages] a")) page.hidden = !empty;
    if (empty) document.getElementById("palette-found").replaceChildren();
    openFirst = false;
    choose(empty ? offered()[0] : null);
  };
  const openPalette = () => {
    if (!palette || palette.open) return;
    palette.showModal();
    palette.querySelector("input").select();
    offerPages();
  };
  if (palette) {
    palette.addEventListener("input", offerPages);
    palette.addEventListener("htmx:afterSwap", () => {
      choose(offered()[0]);
      if (openFirst) offered()[0]?.click();
      openFirst = false;
    });
    palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
    palette.addEventListener("keydown", (event) => {
      const options = offered();
      const at = options.findIndex((option) => option.hasAttribute("aria-selected"));
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        choose(options[(at + (event.key === "ArrowDown" ? 1 : -1) + options.length) % options.length]);
      } else if (event.key === "Enter") {
        event.preventDefault();
        if (options[at]) options[at].click();
        else openFirst = true;
      }
    });
  }

  /* Keys: Ctrl/Cmd K opens the search. Alt Shift with a letter opens the visible link with that data-key, or moves the
     focus to the button: no single key has an effect, and a button needs a second key. */
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    if (!event.altKey || !event.shiftKey || event.ctrlKey || event.metaKey || !event.code.startsWith("Key")) return;
    if (document.querySelector("dialog[open]")) return;
    const control = [...document.querySelectorAll(`[data-key="${event.code.slice(3).toLowerCase()}"]`)]
      .find((element) => element.checkVisibility());
    if (control) {
      event.preventDefault();
      if (control.matches("a")) control.click();
      else control.focus();
    }
  });

  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-copy], [data-open-palette], [data-theme-toggle], [data-set-theme]");
    if (!target) return;
    if (target.dataset.copy) copy(target);
    else if ("openPalette" in target.dataset) { event.preventDefault(); openPalette(); }
    else if ("setTheme" in target.dataset) setTheme(target.dataset.setTheme);
    else setTheme(THEMES[(THEMES.indexOf(root.dataset.theme || "") + 1) % THEMES.length]);
  });

  /* Filter forms submit themselves; the button is for browsers without JavaScript. */
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-autosend]");
    if (form) form.requestSubmit();
  });

  /* After "back", a browser restores the text that was typed. The fields must show the filters of the address. */
  addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-autosend]")) form.reset();
  });

  /* Logs stay scrolled to their end, until the user scrolls back. */
  const follow = (log) => { log.scrollTop = log.scrollHeight; };
  const followAll = () => {
    for (const log of document.querySelectorAll("[data-follow]")) if (log.dataset.atEnd !== "false") follow(log);
  };
  for (const name of ["htmx:afterSettle", "htmx:oobAfterSwap", "htmx:sseMessage"]) document.addEventListener(name, followAll);
  document.addEventListener("scroll", (event) => {
    const log = event.target.closest?.("[data-follow]");
    if (!log) return;
    log.dataset.atEnd = String(log.scrollHeight - log.scrollTop - log.clientHeight < 24);
    catchUp();
  }, true);

  const settle = (within) => {
    for (const button of within.querySelectorAll("[data-autosend-button]")) button.hidden = true;
    for (const log of within.querySelectorAll("[data-follow]")) follow(log);
  };
  document.addEventListener("htmx:load", (event) => { if (event.target !== document.body) settle(event.target); });
  document.addEventListener("htmx:responseError", () => toast("That did not work, and this page may be outdated. Load it again."));
  document.addEventListener("htmx:sendError", () => toast("No connection. Nothing was sent; it will be tried again."));

  /* Do not reload the tab of a log while the user reads it (scrolled back, or text selected); reload it afterwards. */
  const isRead = (log) => {
    const marked = getSelection();
    return log.dataset.atEnd === "false" || (!marked.isCollapsed && log.contains(marked.anchorNode));
  };
  document.addEventListener("htmx:beforeRequest", (event) => {
    const log = event.target.querySelector?.("[data-follow]");
    if (!log || !isRead(log)) return;
    event.preventDefault();
    log.dataset.behind = "1";
  });
  function catchUp() {
    const log = document.querySelector("[data-follow][data-behind]");
    if (!log || isRead(log)) return;
    delete log.dataset.behind;
    document.body.dispatchEvent(new Event("next-stage"));
  }
  document.addEventListener("selectionchange", catchUp);

  /* Messages about a workload's previous stage ("is queued") are outdated in the next stage; remove them after a while. */
  const TO_READ_MS = 6000;
  document.addEventListener("next-stage", () => {
    const said = document.querySelectorAll(".messages .note.ok");
    setTimeout(() => { for (const note of said) note.remove(); }, Math.max(0, TO_READ_MS - performance.now()));
  });

  /* Make areas that scroll sideways focusable, so that the keyboard can scroll them. */
  const letReach = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      const hidden = box.scrollWidth > box.clientWidth;
      if (hidden && !box.querySelector("a, button, input, select, textarea, [tabindex]")) box.tabIndex = 0;
    }
  };
  addEventListener("resize", letReach);
  document.addEventListener("htmx:load", letReach);

  nameZone();
  showTheme();
  settle(document);
  letReach();
  tick();
  setInterval(tick, 1000);
})();
