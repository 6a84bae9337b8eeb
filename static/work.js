/* A notebook's page opens JupyterLab when it answers. */
"use strict";
(() => {
  const openItself = (within) => {
    const form = within.querySelector?.("form[data-opens-itself]");
    if (!form || form.dataset.sent) return;
    form.dataset.sent = "1";
    // Coming back to this page must not open it again.
    const address = new URL(location.href);
    address.searchParams.delete("open");
    history.replaceState(null, "", address);
    form.submit();
  };
  document.addEventListener("htmx:load", (event) => openItself(event.target));
  openItself(document);
})();
