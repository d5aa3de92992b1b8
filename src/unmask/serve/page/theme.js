// Runs before the first paint, so that the page never flashes in the other theme.
(() => {
  let theme = "auto";
  try {
    theme = localStorage.getItem("unmask.theme") ?? "auto";
  } catch {
    // Storage is blocked: the system's theme it is.
  }
  document.documentElement.dataset.theme = ["light", "dark"].includes(theme) ? theme : "auto";
})();
