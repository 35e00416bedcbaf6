// Formatting of numbers and names, and creation of elements. Text is only ever set as text, never as markup.

function element(tag, options = {}, ...children) {
  const created = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "text") created.textContent = value;
    else if (key === "class") created.className = value;
    else if (key === "style") created.style.cssText = value;
    else if (key.startsWith("on")) created.addEventListener(key.slice(2), value);
    else created.setAttribute(key, value);
  }
  created.append(...children);
  return created;
}

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

function duration(ns) {
  const [unit, size] = UNITS.find(([, limit]) => ns >= limit) ?? UNITS[3];
  return `${unit === "ns" ? Math.round(ns) : (ns / size).toFixed(3)} ${unit}`;
}

// One unit for a whole column, so that its numbers are comparable at a glance.
function columnUnit(values) {
  let largest = 0;
  for (const value of values) if (value > largest) largest = value;
  return UNITS.find(([, size]) => largest >= size) ?? UNITS[3];
}

function percent(fraction) {
  if (fraction === 1) return "100 %";
  return fraction > 0.9995 && fraction < 1 ? ">99.9 %" : `${(100 * fraction).toFixed(1)} %`;
}

function size(bytes) {
  for (const [unit, limit] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (bytes >= limit) return `${(bytes / limit).toFixed(1)} ${unit}`;
  return `${bytes} B`;
}

const count = (number) => number.toLocaleString("en");
const baseName = (file) => file.slice(file.lastIndexOf("/") + 1);

// Text with the first match of the search marked.
function marked(text, query) {
  const at = query ? text.toLowerCase().indexOf(query) : -1;
  if (at < 0) return [text];
  return [text.slice(0, at), element("mark", { text: text.slice(at, at + query.length) }), text.slice(at + query.length)];
}

// A group of buttons; exactly one is pressed.
function choice(label, names, pressed, change) {
  const group = element("span", { class: "choice", role: "group", "aria-label": label });
  for (const [name, text] of Object.entries(names)) {
    const button = element("button", { type: "button", text, "aria-pressed": String(name === pressed), "data-choice": name });
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      change(name);
    });
    group.append(button);
  }
  return group;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
