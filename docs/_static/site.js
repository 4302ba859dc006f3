// What the theme lacks for readers without a mouse or a screen.
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll("table.table, .highlight pre")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
  for (const button of document.querySelectorAll("button.search-button-field")) {
    // its text says the same, and its keys; on a phone there is none
    if (button.innerText.trim()) button.removeAttribute("aria-label");
  }
  for (const summary of document.querySelectorAll("summary:not([aria-label])")) {
    if (!summary.textContent.trim()) summary.setAttribute("aria-label", "Pages below");
  }
});
