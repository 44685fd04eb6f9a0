// A page as a function of its data: h() describes elements, render() changes the page to match and keeps what is the same,
// so that focus, selection and scroll position survive an update.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "rect", "line", "circle", "text", "title", "marker", "defs", "polyline"]);

export function h(tag, attributes, ...children) {
  return { tag, attributes: attributes || {}, children: children.flat(9).filter((c) => c !== null && c !== undefined && c !== false) };
}

export function render(parent, children) {
  const wanted = [children].flat(9).filter((c) => c !== null && c !== undefined && c !== false);
  const keys = new Set(wanted.map((child) => child.attributes && child.attributes.key));
  for (const old of [...parent.childNodes]) if (old.$key !== undefined && !keys.has(old.$key)) old.remove();
  wanted.forEach((child, i) => {
    const old = parent.childNodes[i];
    const fits = old && (typeof child === "object" ? old.$tag === child.tag && old.$key === child.attributes.key : old.nodeType === 3);
    if (!fits) {
      const made = make(child);
      old ? parent.replaceChild(made, old) : parent.appendChild(made);
    } else if (typeof child === "object") {
      update(old, child);
    } else if (old.data !== String(child)) {
      old.data = String(child);
    }
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function make(node) {
  if (typeof node !== "object") return document.createTextNode(String(node));
  const element = SVG_TAGS.has(node.tag) ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  element.$tag = node.tag;
  element.$key = node.attributes.key;
  element.$old = {};
  update(element, node);
  return element;
}

function update(element, node) {
  const before = element.$old, after = node.attributes;
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (name !== "key" && before[name] !== after[name]) set(element, name, after[name]);
  }
  element.$old = after;
  if (!("html" in after)) render(element, node.children);
}

function set(element, name, value) {
  if (name.startsWith("on")) element[name] = value || null;
  else if (name === "style") {
    for (const [property, text] of Object.entries(value || {})) element.style.setProperty(property, text);
  } else if (name === "value" || name === "checked" || name === "disabled") element[name] = value ?? false;
  else if (value === undefined || value === null || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : value);
}
