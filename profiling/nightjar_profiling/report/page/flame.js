// The flame graph, an icicle: callers above, width is time; click to zoom, search to highlight.

const LEVEL = 21;
const NAMED = 14; // pixels: narrower nodes are painted on a canvas without a name, which is fast for thousands
const HUES = 5;

// One tree of nodes {name, title, ns, children, frame} from the stacks; `frames`: yours | all; `up`: innermost frame first.
function flameTree(data, frames, up) {
  const root = node("all device time", "all ops without containers", "grey", NO_STACK);
  const { stacks } = data;
  for (let i = 0; i < stacks.frame.length; i++) {
    const ns = stacks.direct_ns[i] + stacks.inferred_ns[i];
    root.ns += ns;
    if (stacks.frame[i] === NO_STACK) {
      child(root, "", () => node("no Python stack", "not attributed", "grey", NO_STACK)).ns += ns;
      continue;
    }
    let path = data.path(stacks.frame[i]);
    if (frames === "yours") path = userFrames(data, path);
    if (up) path.reverse();
    let parent = root;
    for (const frame of path) {
      parent = child(parent, data.frames.site[frame], () => frameNode(data, frame));
      parent.ns += ns;
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
  let existing = parent.children.get(key);
  if (!existing) parent.children.set(key, (existing = make()));
  return existing;
}

// User frames, then the library frames inside the innermost of them; wrappers of jit and grad between user frames are left out.
function userFrames(data, path) {
  const innermost = path.findLastIndex((frame) => data.isUser(frame));
  return innermost < 0 ? path : path.filter((frame, index) => index > innermost || data.isUser(frame));
}

function sortTree(top) {
  top.children = [...top.children.values()].sort((a, b) => b.ns - a.ns);
  for (const item of top.children) { item.parent = top; sortTree(item); }
}

function flameView(data, app) {
  const state = { frames: "yours", up: false, query: "", focus: null };
  const area = element("div", { class: "flame", role: "group", "aria-label": "Flame graph" });
  const detail = element("div", { class: "detail" });
  const status = element("span", { class: "status", "aria-live": "polite" });
  const box = element("input", { type: "search", placeholder: "Highlight a function or file", "aria-label": "Highlight a function or file" });
  const reset = element("button", { type: "button", class: "plain", text: "Reset zoom" });
  const blank = element("div", { role: "button", tabindex: "-1" });
  const thin = element("canvas", { "aria-hidden": "true" });
  let root, drawn = new Map(), painted = [];

  const rebuild = () => { root = flameTree(data, state.frames, state.up); state.focus = root; draw(); };
  const zoom = (item) => { state.focus = item; draw(); showDetail(item); };

  function draw() {
    const width = (state.width = area.clientWidth), focus = state.focus, made = [];
    if (!width) return; // not on the page yet; drawn when it is shown
    drawn = new Map();
    painted = [];
    let depth = 0, matched = 0;
    const matches = (item) => state.query && `${item.name} ${item.title}`.toLowerCase().includes(state.query);
    const put = (item, level, left, ns, above) => {
      const size = (ns / (focus.ns || 1)) * width;
      if (size < 0.6) return;
      depth = Math.max(depth, level + 1);
      const dim = state.query && !matches(item);
      if (size < NAMED && item !== focus) {
        (painted[level] ??= []).push({ item, left, size, dim });
        return;
      }
      const box = blank.cloneNode();
      box.className = `node${above ? " above" : ""}${dim ? " dim" : ""}`;
      box.style.cssText = `left: ${left.toFixed(2)}px; width: ${size.toFixed(2)}px; top: ${level * LEVEL}px; background: var(--${item.hue})`;
      box.textContent = item.name;
      drawn.set(box, item);
      made.push(box);
    };
    const chain = [];
    for (let item = focus.parent; item; item = item.parent) chain.unshift(item);
    chain.forEach((item, level) => put(item, level, 0, focus.ns, true));
    const below = (item, level, left) => {
      put(item, level, left, item.ns, false);
      for (const other of item.children) {
        if ((other.ns / (focus.ns || 1)) * width >= 0.6) below(other, level + 1, left);
        left += (other.ns / (focus.ns || 1)) * width;
      }
    };
    below(focus, chain.length, 0);
    if (state.query) { // time of the outermost matches only, so that nested ones do not count twice
      const sum = (item) => (matches(item) ? item.ns : item.children.reduce((ns, other) => ns + sum(other), 0));
      matched = sum(root);
    }
    status.textContent = state.query ? `${duration(matched)}, ${percent(matched / (root.ns || 1))} match` : "";
    reset.disabled = focus === root;
    if (made.length) made[0].tabIndex = 0;
    area.replaceChildren(element("div", { style: `height: ${depth * LEVEL + 4}px` }), thin, ...made);
    paint(width, depth * LEVEL);
  }

  // Paints the nodes without a name.
  function paint(width, height) {
    const scale = devicePixelRatio || 1, context = thin.getContext("2d");
    thin.width = width * scale;
    thin.height = height * scale;
    thin.style.cssText = `width: ${width}px; height: ${height}px`;
    context.scale(scale, scale);
    const colours = new Map();
    painted.forEach((row, level) => row.forEach(({ item, left, size, dim }) => {
      if (!colours.has(item.hue)) colours.set(item.hue, colour(item.hue));
      context.fillStyle = colours.get(item.hue);
      context.globalAlpha = dim ? 0.28 : 1;
      context.fillRect(left, level * LEVEL, size > 2 ? size - 0.6 : size, LEVEL - 1);
    }));
  }

  // The node under the mouse, as an element or on the canvas.
  function find(event) {
    if (event.target !== thin) return drawn.get(event.target);
    return painted[Math.floor(event.offsetY / LEVEL)]?.find(({ left, size }) => event.offsetX >= left && event.offsetX < left + size)?.item;
  }

  function showDetail(item) {
    const parts = [element("b", { text: item.name }), element("span", { text: `${duration(item.ns)} · ${percent(item.ns / (root.ns || 1))}` })];
    if (item.frame === NO_STACK) parts.push(element("span", { class: "soft", text: item.title }));
    else parts.push(app.lineLink(item.frame, item.title));
    detail.replaceChildren(...parts);
  }

  area.addEventListener("click", (event) => { const item = find(event); if (item) zoom(item); });
  area.addEventListener("mousemove", (event) => {
    const item = find(event);
    if (!item) return;
    event.target.title = `${item.name}\n${item.title}\n${duration(item.ns)}, ${percent(item.ns / (root.ns || 1))}`;
    showDetail(item);
  });
  area.addEventListener("focusin", (event) => {
    const item = drawn.get(event.target);
    if (!item) return;
    event.target.setAttribute("aria-label", `${item.name}, ${duration(item.ns)}`);
    showDetail(item);
  });
  area.addEventListener("keydown", (event) => {
    const item = drawn.get(event.target);
    if (event.key === "Escape") { zoom(root); return; }
    if (!item) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      zoom(item);
      [...drawn].find(([, other]) => other === item)?.[0].focus();
      return;
    }
    const siblings = item.parent?.children ?? [item], at = siblings.indexOf(item);
    const next = { ArrowUp: item.parent, ArrowDown: item.children[0], ArrowLeft: siblings[at - 1], ArrowRight: siblings[at + 1] }[event.key];
    const button = next && [...drawn].find(([, other]) => other === next)?.[0];
    if (button) { event.preventDefault(); button.focus(); }
  });
  box.addEventListener("input", () => { state.query = box.value.trim().toLowerCase(); draw(); });
  reset.addEventListener("click", () => zoom(root));
  new ResizeObserver(() => { if (area.clientWidth !== state.width) draw(); }).observe(area);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  rebuild();
  showDetail(root);
  return element("div", { class: "view", onshown: draw },
    element("div", { class: "bar" }, box, status, element("span", { class: "grow" }), app.fusionChoice(),
      choice("Frames", { yours: "Your frames", all: "All frames" }, "yours", (name) => { state.frames = name; rebuild(); }),
      choice("Direction", { down: "Callers on top", up: "Lines on top" }, "down", (name) => { state.up = name === "up"; rebuild(); }), reset),
    element("div", { class: "panel" }, area, detail));
}
