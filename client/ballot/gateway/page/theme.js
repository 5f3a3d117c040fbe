// A classic script in the head: it runs before the first paint, so that a chosen theme never
// flashes. The choice says nothing about anyone's prompts, so it may stay in localStorage.
{
  let theme = null;
  try {
    theme = localStorage.getItem("ballot-theme");
  } catch {
    // Storage is switched off: the page follows the system.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
