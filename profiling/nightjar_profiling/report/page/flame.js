// How does the time look as a tree of calls? An icicle: callers above, width is time; click to zoom, search to highlight.

const LEVEL = 21;
const NAMED = 14; // pixels: what is narrower is painted without a name, which a browser does at once for thousands
const HUES = 5;

// One tree of nodes {name, title, ns, children, frame} from the stacks; `frames`: yours | all; `up`: from the inside out.
function flameTree(data, frames, up) {
  const root = node("all device time", "all ops, containers left out", "grey", NO_STACK);
  const { stacks } = data;
  for (let i = 0; i < stacks.frame.length; i++) {
    const ns = stacks.direct_ns[i] + stacks.inferred_ns[i];
    root.ns += ns;
    if (stacks.frame[i] === NO_STACK) {
      child(root, "", () => node("no Python stack", "not attributed, never guessed", "grey", NO_STACK)).ns += ns;
      continue;
    }
    let path = data.path(stacks.frame[i]);
    if (frames === "yours") path = yours(data, path);
    if (up) path.reverse();
    let place = root;
    for (const frame of path) {
      place = child(place, data.frames.site[frame], () => frameNode(data, frame));
      place.ns += ns;
    }
  }
  sortTree(root);
  return root;
}

const node = (name, title, hue, frame) => ({ name, title, hue, frame, ns: 0, children: new Map() });

function frameNode(data, frame) {
  const file = data.fileOf(frame), line = data.lineOf(frame), user = data.isUser(frame);
  let hash = 0;
  for (let i = 0; i < file.length; i++) hash = (hash * 31 + file.charCodeAt(i)) >>> 0;
  const hue = user ? `user${(hash % HUES) + 1}` : "library";
  return node(`${data.functionOf(frame)}  ${baseName(file)}:${line}`, `${file}:${line}`, hue, frame);
}

function child(parent, key, make) {
  let found = parent.children.get(key);
  if (!found) parent.children.set(key, (found = make()));
  return found;
}

// Your frames, then the library frames below the innermost of them: wrappers of jit and grad between yours only push them apart.
function yours(data, path) {
  const innermost = path.findLastIndex((frame) => data.isUser(frame));
  return innermost < 0 ? path : path.filter((frame, place) => place > innermost || data.isUser(frame));
}

function sortTree(top) {
  top.children = [...top.children.values()].sort((a, b) => b.ns - a.ns);
  for (const one of top.children) { one.parent = top; sortTree(one); }
}

function flameView(data, app) {
  const state = { frames: "yours", up: false, wanted: "", focus: null };
  const area = element("div", { class: "flame", role: "group", "aria-label": "Flame graph" });
  const detail = element("div", { class: "detail" });
  const status = element("span", { class: "status", "aria-live": "polite" });
  const box = element("input", { type: "search", placeholder: "Highlight a function or file", "aria-label": "Highlight a function or file" });
  const reset = element("button", { type: "button", class: "plain", text: "Reset zoom" });
  const blank = element("div", { role: "button", tabindex: "-1" });
  const thin = element("canvas", { "aria-hidden": "true" });
  let root, drawn = new Map(), painted = [];

  const rebuild = () => { root = flameTree(data, state.frames, state.up); state.focus = root; draw(); };
  const zoom = (one) => { state.focus = one; draw(); say(one); };

  function draw() {
    const width = (state.width = area.clientWidth), focus = state.focus, made = [];
    if (!width) return; // not on the page yet: drawn as soon as it is
    drawn = new Map();
    painted = [];
    let depth = 0, lit = 0;
    const matches = (one) => state.wanted && `${one.name} ${one.title}`.toLowerCase().includes(state.wanted);
    const put = (one, level, left, ns, above) => {
      const wide = (ns / (focus.ns || 1)) * width;
      if (wide < 0.6) return;
      depth = Math.max(depth, level + 1);
      const dim = state.wanted && !matches(one);
      if (wide < NAMED && one !== focus) {
        (painted[level] ??= []).push({ one, left, wide, dim });
        return;
      }
      const box = blank.cloneNode();
      box.className = `node${above ? " above" : ""}${dim ? " dim" : ""}`;
      box.style.cssText = `left: ${left.toFixed(2)}px; width: ${wide.toFixed(2)}px; top: ${level * LEVEL}px; background: var(--${one.hue})`;
      box.textContent = one.name;
      drawn.set(box, one);
      made.push(box);
    };
    const chain = [];
    for (let one = focus.parent; one; one = one.parent) chain.unshift(one);
    chain.forEach((one, level) => put(one, level, 0, focus.ns, true));
    const below = (one, level, left) => {
      put(one, level, left, one.ns, false);
      for (const each of one.children) {
        if ((each.ns / (focus.ns || 1)) * width >= 0.6) below(each, level + 1, left);
        left += (each.ns / (focus.ns || 1)) * width;
      }
    };
    below(focus, chain.length, 0);
    if (state.wanted) { // time under the outermost matches, so that nested ones do not count twice
      const sum = (one) => (matches(one) ? one.ns : one.children.reduce((ns, each) => ns + sum(each), 0));
      lit = sum(root);
    }
    status.textContent = state.wanted ? `${duration(lit)}, ${percent(lit / (root.ns || 1))} match` : "";
    reset.disabled = focus === root;
    if (made.length) made[0].tabIndex = 0;
    area.replaceChildren(element("div", { style: `height: ${depth * LEVEL + 4}px` }), thin, ...made);
    paint(width, depth * LEVEL);
  }

  // The nodes without a name.
  function paint(width, height) {
    const scale = devicePixelRatio || 1, context = thin.getContext("2d");
    thin.width = width * scale;
    thin.height = height * scale;
    thin.style.cssText = `width: ${width}px; height: ${height}px`;
    context.scale(scale, scale);
    const colours = new Map();
    painted.forEach((row, level) => row.forEach(({ one, left, wide, dim }) => {
      if (!colours.has(one.hue)) colours.set(one.hue, colour(one.hue));
      context.fillStyle = colours.get(one.hue);
      context.globalAlpha = dim ? 0.28 : 1;
      context.fillRect(left, level * LEVEL, wide > 2 ? wide - 0.6 : wide, LEVEL - 1);
    }));
  }

  // The node under the mouse, painted or not.
  function find(event) {
    if (event.target !== thin) return drawn.get(event.target);
    return painted[Math.floor(event.offsetY / LEVEL)]?.find(({ left, wide }) => event.offsetX >= left && event.offsetX < left + wide)?.one;
  }

  function say(one) {
    const parts = [element("b", { text: one.name }), element("span", { text: `${duration(one.ns)} · ${percent(one.ns / (root.ns || 1))}` })];
    if (one.frame === NO_STACK) parts.push(element("span", { class: "soft", text: one.title }));
    else parts.push(app.lineLink(one.frame, one.title));
    detail.replaceChildren(...parts);
  }

  area.addEventListener("click", (event) => { const one = find(event); if (one) zoom(one); });
  area.addEventListener("mousemove", (event) => {
    const one = find(event);
    if (!one) return;
    event.target.title = `${one.name}\n${one.title}\n${duration(one.ns)}, ${percent(one.ns / (root.ns || 1))}`;
    say(one);
  });
  area.addEventListener("focusin", (event) => {
    const one = drawn.get(event.target);
    if (!one) return;
    event.target.setAttribute("aria-label", `${one.name}, ${duration(one.ns)}`);
    say(one);
  });
  area.addEventListener("keydown", (event) => {
    const one = drawn.get(event.target);
    if (event.key === "Escape") { zoom(root); return; }
    if (!one) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      zoom(one);
      [...drawn].find(([, each]) => each === one)?.[0].focus();
      return;
    }
    const siblings = one.parent?.children ?? [one], at = siblings.indexOf(one);
    const next = { ArrowUp: one.parent, ArrowDown: one.children[0], ArrowLeft: siblings[at - 1], ArrowRight: siblings[at + 1] }[event.key];
    const button = next && [...drawn].find(([, each]) => each === next)?.[0];
    if (button) { event.preventDefault(); button.focus(); }
  });
  box.addEventListener("input", () => { state.wanted = box.value.trim().toLowerCase(); draw(); });
  reset.addEventListener("click", () => zoom(root));
  new ResizeObserver(() => { if (area.clientWidth !== state.width) draw(); }).observe(area);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  rebuild();
  say(root);
  return element("div", { class: "view", onshown: draw },
    element("div", { class: "bar" }, box, status, element("span", { class: "grow" }), app.fusionChoice(),
      choice("Frames", { yours: "Your frames", all: "All frames" }, "yours", (name) => { state.frames = name; rebuild(); }),
      choice("Direction", { down: "Callers on top", up: "Lines on top" }, "down", (name) => { state.up = name === "up"; rebuild(); }), reset),
    element("div", { class: "panel" }, area, detail));
}
