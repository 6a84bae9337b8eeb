/* The page of a notebook opens JupyterLab as soon as it responds. */
"use strict";
(() => {
  const openItself = (within) => {
    const form = within.querySelector?.("form[data-opens-itself]");
    if (!form || form.dataset.sent) return;
    form.dataset.sent = "1";
    // Do not open JupyterLab again when the user returns to this page.
    const address = new URL(location.href);
    address.searchParams.delete("open");
    history.replaceState(null, "", address);
    form.submit();
  };
  document.addEventListener("htmx:load", (event) => openItself(event.target));
  openItself(document);
})();
