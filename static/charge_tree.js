/* The tree of charges: rows open in place, one request a level. Without scripts, each link loads the page with the row open. */
"use strict";
(() => {
  const tree = document.querySelector("[data-charge-tree]");
  if (!tree) return;
  const depthOf = (row) => Number(row.dataset.depth);

  /* The address keeps the open rows, so that a copied address or a reload shows the same tree. */
  const remember = (change) => {
    const address = new URL(location.href);
    const opened = address.searchParams.getAll("open");
    address.searchParams.delete("open");
    for (const path of change(opened)) address.searchParams.append("open", path);
    history.replaceState(null, "", address);
    const file = tree.querySelector("a[data-tree-file]");
    if (file) {
      const shown = new URLSearchParams(address.search);
      shown.set("format", "csv");
      file.href = `?${shown}`;
    }
  };
  const isAt = (path, text) => text === path || text.startsWith(`${path}@`);
  const isBelow = (path, text) => isAt(path, text) || text.startsWith(`${path}/`);

  const rowsBelow = (row) => {
    const found = [];
    for (let next = row.nextElementSibling; next && depthOf(next) > depthOf(row); next = next.nextElementSibling) {
      if (!next.classList.contains("leaf")) found.push(next);
    }
    return found;
  };
  const fetchRows = async (address) => {
    const answer = await fetch(address, { headers: { "X-Requested-With": "fetch" } });
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    const body = document.createElement("tbody");
    body.innerHTML = await answer.text();
    return [...body.children];
  };

  const open = async (link) => {
    const row = link.closest("tr");
    link.setAttribute("aria-busy", "true");
    const rows = await fetchRows(link.dataset.rows);
    row.after(...rows);
    link.setAttribute("aria-expanded", "true");
    remember((opened) => [...opened, row.dataset.path]);
  };
  const close = (link) => {
    const row = link.closest("tr");
    for (const each of rowsBelow(row)) each.remove();
    link.setAttribute("aria-expanded", "false");
    remember((opened) => opened.filter((text) => !isBelow(row.dataset.path, text)));
  };
  const toggle = async (link) => {
    if (link.hasAttribute("aria-busy")) return;
    try {
      if (link.getAttribute("aria-expanded") === "true") close(link); else await open(link);
    } catch (failed) {
      location.assign(link.href);
    } finally {
      link.removeAttribute("aria-busy");
    }
  };

  /* The pager of a long level replaces the rows of this level. */
  const turn = async (link) => {
    const pager = link.closest("tr"), path = pager.dataset.of;
    const rows = await fetchRows(link.dataset.pageRows);
    for (let row = pager.previousElementSibling; row && depthOf(row) >= depthOf(pager); row = pager.previousElementSibling) row.remove();
    pager.replaceWith(...rows);
    const shown = new URL(link.dataset.pageRows, location.href).searchParams.get("open");
    remember((opened) => [...opened.filter((text) => !(path ? isBelow(path, text) : text.startsWith("@"))), shown]);
    rows[0]?.querySelector("a")?.focus();
  };

  tree.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const link = event.target.closest("a[data-rows], a[data-page-rows]");
    if (!link) return;
    event.preventDefault();
    if (link.dataset.rows) toggle(link);
    else turn(link).catch(() => location.assign(link.href));
  });

  /* The chosen columns are hidden by classes of the table, so they also apply to rows that open later. */
  const HIDDEN = "gpupool.charge-tree.hidden-columns";
  const table = tree.querySelector("table.tree"), chooser = tree.querySelector("[data-tree-columns]");
  const boxes = [...tree.querySelectorAll("#tree-columns input")];
  const showColumns = () => {
    for (const box of boxes) table.classList.toggle(`hides-${box.value}`, !box.checked);
  };
  if (table && chooser) {
    let hidden = [];
    try { hidden = JSON.parse(localStorage.getItem(HIDDEN) ?? "[]"); } catch (unreadable) { localStorage.removeItem(HIDDEN); }
    for (const box of boxes) box.checked = !hidden.includes(box.value);
    showColumns();
    chooser.hidden = false;
    tree.querySelector("#tree-columns").addEventListener("change", () => {
      showColumns();
      localStorage.setItem(HIDDEN, JSON.stringify(boxes.filter((box) => !box.checked).map((box) => box.value)));
    });
  }

  /* Arrow keys: up and down go from row to row, right opens a row, left closes it or goes to the row above. */
  const names = () => [...tree.querySelectorAll("tbody td.col-name > a:first-of-type")];
  const above = (row) => {
    let found = row.previousElementSibling;
    while (found && depthOf(found) >= depthOf(row)) found = found.previousElementSibling;
    return found?.querySelector("td.col-name > a");
  };
  tree.addEventListener("keydown", (event) => {
    const link = event.target.closest("tbody td.col-name > a");
    if (!link || event.ctrlKey || event.metaKey || event.altKey) return;
    const links = names(), at = links.indexOf(link), isOpen = link.getAttribute("aria-expanded");
    const moves = { ArrowDown: () => links[at + 1]?.focus(), ArrowUp: () => links[at - 1]?.focus() };
    if (isOpen === "false") moves.ArrowRight = () => toggle(link);
    else if (isOpen === "true") moves.ArrowLeft = () => toggle(link);
    moves.ArrowLeft ??= () => above(link.closest("tr"))?.focus();
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    move();
  });
})();
