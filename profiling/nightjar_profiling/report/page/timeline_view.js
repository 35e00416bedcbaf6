// The timeline view: wheel zooms, drag pans, keys do both; a click shows the op and its Python stack.

function timelineView(data, app) {
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-label": "Timeline: W and S zoom, A and D pan, arrow keys go from op to op" });
  const tip = element("div", { class: "tip" });
  const detail = element("div", { class: "detail" }, element("span", { class: "soft", text: "Click an op to see its Python stack." }));
  const stack = element("ol", { class: "stack", hidden: "" });
  const view = new TimelineCanvas(data, canvas);
  const { timeline, instructions } = data;
  let grip = null;

  function choose(i) {
    view.chosen = i;
    view.draw();
    if (i < 0) return;
    canvas.dataset.chosen = i;
    const number = timeline.instruction[i], facts = [duration(timeline.duration[i]), `at ${duration(timeline.start[i])}`];
    if (timeline.merged[i] > 1) facts.unshift(`${count(timeline.merged[i])} short ops drawn as one block; the longest is`);
    if (timeline.hidden[i] >= 0) facts.push(`${duration(timeline.hidden[i])} of it overlapped by compute`);
    const program = instructions.program[number] >= 0 ? data.programs[instructions.program[number]] : "no program";
    detail.replaceChildren(
      element("b", { class: "mono", text: instructions.name[number] }), element("span", { text: facts.join(" · ") }),
      element("span", { class: "soft", text: `${instructions.opcode[number]} (${instructions.category[number]}) in ${program}` }),
      element("span", { class: "soft", text: `all ${count(instructions.count[number])} runs: ${duration(instructions.total_ns[number])}` }),
      element("span", { class: "soft mono", text: instructions.op_name[number] }));
    const frame = instructions.frame[number];
    stack.hidden = frame === NO_STACK;
    if (frame !== NO_STACK) stack.replaceChildren(...data.path(frame).reverse().map((outer) => element("li", { class: data.isUser(outer) ? "" : "library" },
      app.lineLink(outer, `${baseName(data.fileOf(outer))}:${data.lineOf(outer)}`), element("span", { text: data.functionOf(outer) }))));
  }

  function hover(event) {
    const i = view.find(event.offsetX, event.offsetY);
    tip.style.display = i < 0 || grip ? "none" : "block";
    if (i < 0) return;
    const number = timeline.instruction[i];
    tip.textContent = timeline.merged[i] > 1 ? `${count(timeline.merged[i])} short ops` : `${instructions.name[number]} · ${duration(timeline.duration[i])}`;
    tip.style.left = `${Math.min(event.offsetX + 12, Math.max(0, view.width - 320))}px`;
    tip.style.top = `${event.offsetY + 16}px`;
  }

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan(event.deltaX || event.deltaY);
    else if (event.offsetX < view.label) view.scroll(event.deltaY);
    else view.zoom(Math.exp(event.deltaY * 0.0018), event.offsetX);
    hover(event);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    grip = { x: event.offsetX, y: event.offsetY, moved: false, from: view.from, overview: event.offsetY < OVERVIEW };
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
    if (grip.overview) center(event.offsetX);
  });
  const center = (x) => {
    const at = ((x - view.label) / (view.width - view.label)) * view.end, half = (view.to - view.from) / 2;
    view.show(at - half, at + half);
  };
  canvas.addEventListener("pointermove", (event) => {
    if (!grip) { hover(event); return; }
    if (grip.overview) { center(event.offsetX); return; }
    if (Math.abs(event.offsetX - grip.x) + Math.abs(event.offsetY - grip.y) > 3) grip.moved = true;
    if (grip.moved) { view.pan(grip.x - event.offsetX); view.scroll(grip.y - event.offsetY); grip.x = event.offsetX; grip.y = event.offsetY; }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (grip && !grip.moved && !grip.overview) choose(view.find(event.offsetX, event.offsetY));
    grip = null;
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("dblclick", (event) => {
    const i = view.find(event.offsetX, event.offsetY);
    if (i >= 0) view.show(timeline.start[i] - timeline.duration[i], timeline.start[i] + 2 * timeline.duration[i]);
  });
  // The keys in the bar work wherever the focus is, except arrows in a tab or a table.
  addEventListener("keydown", (event) => {
    if (!canvas.offsetParent || event.defaultPrevented || /INPUT|TEXTAREA/.test(event.target.tagName)) return;
    if (event.key.length > 1 && ![canvas, document.body].includes(event.target)) return;
    const step = (view.width - view.label) / 6, middle = view.label + (view.width - view.label) / 2;
    const act = {
      w: () => view.zoom(0.7, middle), s: () => view.zoom(1 / 0.7, middle), a: () => view.pan(-step), d: () => view.pan(step),
      ArrowUp: () => view.scroll(-LANE), ArrowDown: () => view.scroll(LANE), Escape: () => view.show(0, view.end),
      ArrowRight: () => follow(1), ArrowLeft: () => follow(-1),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (act && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); act(); }
  });
  // Selects the next op of the lane and scrolls to it.
  function follow(step) {
    const lanes = view.rows.filter((row) => row.kind === "lane");
    const row = lanes.find((lane) => view.chosen >= lane.first && view.chosen < lane.last) ?? lanes[0];
    if (!row) return;
    const i = view.chosen < 0 ? row.first : Math.max(row.first, Math.min(row.last - 1, view.chosen + step));
    const half = (view.to - view.from) / 2;
    if (timeline.start[i] < view.from || timeline.start[i] > view.to) view.show(timeline.start[i] - half, timeline.start[i] + half);
    choose(i);
  }

  const used = new Set([...timeline.instruction].map((number) => instructions.group[number]));
  const keys = data.groups.flatMap((text, n) => (used.has(n) ? [element("li", {}, element("i", { style: `background: var(--${GROUPS[n]})` }), text)] : []));
  if (timeline.exposed.start.length) keys.push(element("li", {}, element("i", { style: "background: var(--exposed)" }), "exposed communication"));
  const merged = timeline.start.length < timeline.n_ops ? `${count(timeline.n_ops)} ops in ${count(timeline.start.length)} blocks: the shortest ops are merged` : `${count(timeline.n_ops)} ops`;
  const reset = element("button", { type: "button", class: "plain", text: "Whole trace", onclick: () => view.show(0, view.end) });
  new ResizeObserver(() => view.resize()).observe(canvas);
  addEventListener("resize", () => view.resize());
  const help = element("span", { class: "status" }, ...["W", "S"].map((text) => element("kbd", { text })), " zoom ", ...["A", "D"].map((text) => element("kbd", { text })), " pan ", ...["←", "→"].map((text) => element("kbd", { text })), " next op");
  return element("div", { class: "view" },
    element("div", { class: "bar" }, element("ul", { class: "keys" }, ...keys), element("span", { class: "grow" }), element("span", { class: "status", text: merged }), help, reset),
    element("div", { class: "panel" }, element("div", { class: "timeline" }, canvas, tip), detail, stack));
}
