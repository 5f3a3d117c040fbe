// Messages at the fields they are about.

import { byId, h } from "./dom.js";

const MESSAGE = "field-message";

/** Show `message` at `element`, a field or a group of them, and go there. */
export function showAt(element, message) {
  clearMessages();
  const host = element.closest("[data-host]");
  host.append(h("p", { class: "field-message", id: MESSAGE }, message));
  host.classList.add("at-fault");
  element.dataset.described = element.getAttribute("aria-describedby") ?? "";
  element.setAttribute("aria-describedby", `${element.dataset.described} ${MESSAGE}`.trim());
  if (element.matches("input, textarea, select")) element.setAttribute("aria-invalid", "true");
  element.focus();
}

/** Take away the message, wherever it is. */
export function clearMessages() {
  byId(MESSAGE)?.remove();
  for (const host of document.querySelectorAll(".at-fault")) host.classList.remove("at-fault");
  for (const element of document.querySelectorAll("[data-described]")) {
    element.removeAttribute("aria-invalid");
    const { described } = element.dataset;
    if (described) element.setAttribute("aria-describedby", described);
    else element.removeAttribute("aria-describedby");
    delete element.dataset.described;
  }
}
