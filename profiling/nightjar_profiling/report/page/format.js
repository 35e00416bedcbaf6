// How are numbers and names shown, and how is an element made? Text never becomes markup: it is set as text only.

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "text") made.textContent = value;
    else if (key === "class") made.className = value;
    else if (key === "style") made.style.cssText = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

function duration(ns) {
  const [unit, size] = UNITS.find(([, one]) => ns >= one) ?? UNITS[3];
  return `${unit === "ns" ? Math.round(ns) : (ns / size).toFixed(3)} ${unit}`;
}

// One unit for a whole column, so that its numbers can be compared by their length.
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
  for (const [unit, one] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (bytes >= one) return `${(bytes / one).toFixed(1)} ${unit}`;
  return `${bytes} B`;
}

const count = (number) => number.toLocaleString("en");
const baseName = (file) => file.slice(file.lastIndexOf("/") + 1);

// Text in which what was searched for is marked.
function marked(text, wanted) {
  const at = wanted ? text.toLowerCase().indexOf(wanted) : -1;
  if (at < 0) return [text];
  return [text.slice(0, at), element("mark", { text: text.slice(at, at + wanted.length) }), text.slice(at + wanted.length)];
}

// A group of buttons of which one is pressed.
function choice(label, names, pressed, change) {
  const group = element("span", { class: "choice", role: "group", "aria-label": label });
  for (const [name, text] of Object.entries(names)) {
    const button = element("button", { type: "button", text, "aria-pressed": String(name === pressed), "data-choice": name });
    button.addEventListener("click", () => {
      for (const one of group.children) one.setAttribute("aria-pressed", String(one === button));
      change(name);
    });
    group.append(button);
  }
  return group;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
