// Elements from data. What comes from the router becomes text, never markup.

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const el = (name, attributes = {}, ...children) =>
  build(document.createElement(name), attributes, children);

export const svg = (name, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

export const byId = (id) => document.getElementById(id);

// Changes the document only where it says something else.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
