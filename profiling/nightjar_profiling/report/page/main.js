// Start of the page: inflates the data, creates views when they are first shown, and follows the address.

function sectionView(data, app, section) {
  const columns = section.columns.map((column) => (column.kind !== "line" ? column : {
    ...column, show: (cell, frame) => { if (frame !== null && frame !== NO_STACK) cell.append(userLink(data, app, frame)); },
  }));
  const widths = { kernel: "minmax(340px, 3fr)", module: "minmax(280px, 3fr)", "what to do": "minmax(280px, 2fr)", evidence: "minmax(280px, 2fr)", grid: "110px", block: "110px" };
  for (const column of columns) if (Object.hasOwn(widths, column.name)) { column.width = widths[column.name]; column.least = parseInt(widths[column.name].replace("minmax(", ""), 10); }
  const table = new Table({ label: section.title, columns }), chart = sectionChart(data, section);
  return element("div", { class: "view" }, element("p", { class: "note", text: section.note }),
    ...(chart ? [chart] : []), element("div", { class: "bar" }, ...table.searchBox(`Search ${section.title.toLowerCase()}`)), table.root);
}

// What to do next: a list, since it is read and not searched.
function nextView(data, app, section) {
  const values = Object.fromEntries(section.columns.map((column) => [column.name, column.values]));
  const items = values["what to do"].map((action, i) => {
    const evidence = element("p", { text: `Could save ${percent(values["of the elapsed time"][i])} of the elapsed time (${duration(values["would save"][i])}): ${values.evidence[i]}. ` });
    const frame = values.line?.[i];
    if (frame !== undefined && frame !== null && frame !== NO_STACK) evidence.append(userLink(data, app, frame));
    return element("li", {}, element("b", { text: action }), evidence);
  });
  return element("div", { class: "view" }, element("p", { class: "note", text: section.note }), element("ol", { class: "advice panel" }, ...items));
}

function userLink(data, app, frame) {
  const user = data.userFrame(frame);
  return app.lineLink(user, `${baseName(data.fileOf(user))}:${data.lineOf(user)}`);
}

// By instruction, the lines of operations that XLA merged into it.
function alsoComputes(data) {
  const { instruction, frame } = data.merged, lines = instruction.length ? data.instructions.name.map(() => new Set()) : [];
  for (let i = 0; i < instruction.length; i++) {
    const user = data.userFrame(frame[i]);
    lines[instruction[i]].add(`${baseName(data.fileOf(user))}:${data.lineOf(user)}`);
  }
  return lines.map((names) => [...names].join(", "));
}

function instructionsView(data, app) {
  const instructions = data.instructions, total = data.total_ns || 1;
  const table = new Table({
    label: "Instructions",
    columns: [
      { name: "time", kind: "ns", values: instructions.total_ns },
      { name: "share", kind: "fraction", values: [...instructions.total_ns].map((ns) => ns / total), width: "170px" },
      { name: "runs", kind: "int", values: instructions.count, width: "84px" },
      { name: "mean", kind: "ns", values: instructions.total_ns.map((ns, i) => ns / instructions.count[i]) },
      { name: "instruction", kind: "text", values: instructions.name, width: "minmax(200px, 1fr)" },
      { name: "opcode", kind: "text", values: instructions.opcode, width: "140px", least: 140 },
      { name: "shape", kind: "text", values: instructions.shape, width: "150px", least: 150 },
      ...(instructions.sharding.some(Boolean) ? [
        { name: "sharding", kind: "text", values: instructions.sharding, width: "110px", least: 110 },
        { name: "whole shape", kind: "text", values: instructions.global_shape, width: "150px", least: 150 },
      ] : []),
      ...(data.merged.frame.length ? [{ name: "also computes", kind: "text", values: alsoComputes(data), width: "170px", least: 170 }] : []),
      { name: "category", kind: "text", values: instructions.category, width: "130px", least: 130 },
      { name: "line", kind: "line", values: instructions.frame, width: "170px", show: (cell, frame) => { if (frame !== NO_STACK) cell.append(userLink(data, app, frame)); } },
      { name: "stack", kind: "text", values: instructions.how, width: "90px", least: 90 },
      { name: "traced as", kind: "text", values: instructions.op_name, width: "minmax(200px, 1.4fr)" },
    ],
    search: (i) => `${instructions.name[i]} ${instructions.opcode[i]} ${instructions.category[i]} ${instructions.op_name[i]} ${instructions.how[i]} ${instructions.frame[i] < 0 ? "" : `${data.fileOf(data.userFrame(instructions.frame[i]))}:${data.lineOf(data.userFrame(instructions.frame[i]))}`}`,
  });
  return element("div", { class: "view" }, element("p", { class: "note", text: instructionsNote(data) }),
    element("div", { class: "bar" }, ...table.searchBox("Search instructions")), table.root);
}

function instructionsNote(data) {
  let note = "Every instruction that ran, with the line that has most of its time, and how the line was determined. The shape is that on one device.";
  if (data.instructions.sharding.some(Boolean)) note += " Sharding: tiles along each dimension of the whole array; not split: each device holds as many elements as there are, replicated or as a partial sum.";
  if (data.merged.frame.length) note += " Also computes: lines of equal operations, which XLA computes once.";
  return note;
}

// Notes what is shown in the address; a frame inside a notebook has none.
function remember(place) {
  try { history.replaceState(null, "", `#${encodeURI(place)}`); } catch (error) { if (error.name !== "SecurityError") throw error; }
}

// A trace without stacks has no lines: it opens on its kernels, else on its ops.
function orderViews(data, views) {
  if (data.places.size) return views;
  const first = ["kernels", "instructions", "timeline"];
  const place = (view) => (first.includes(view.id) ? first.indexOf(view.id) : first.length);
  return views.filter((view) => !["lines", "flame"].includes(view.id)).sort((a, b) => place(a) - place(b));
}

async function main() {
  const app = { remember };
  const data = complete(await inflate(document.getElementById("packed").textContent));
  apportion(data, data.fusion);
  const views = orderViews(data, [
    { id: "lines", title: "Lines", make: () => linesView(data, app) },
    { id: "flame", title: "Flame graph", make: () => flameView(data, app) },
    { id: "timeline", title: "Timeline", make: () => timelineView(data, app) },
    { id: "instructions", title: "Instructions", make: () => instructionsView(data, app) },
    ...data.sections.map((section) => ({ id: section.id, title: section.title, make: () => (section.id === "next" ? nextView : sectionView)(data, app, section) })),
  ]);
  const nav = document.querySelector("nav.views"), stage = document.querySelector("main");

  function show(id) {
    const view = views.find((candidate) => candidate.id === id) ?? views[0];
    for (const other of views) {
      other.button.setAttribute("aria-selected", String(other === view));
      other.button.tabIndex = other === view ? 0 : -1;
      if (other.root) other.root.hidden = other !== view;
    }
    view.button.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (!view.root) { view.root = view.make(); view.root.setAttribute("role", "tabpanel"); stage.append(view.root); view.root.dispatchEvent(new Event("shown")); }
    return view;
  }

  // How the time of a fusion is attributed; recreates the views that depend on it.
  app.fusionChoice = () => choice("Time of a fusion", { split: "Fusions split", root: "Whole to root" }, data.fusion, (fusion) => {
    apportion(data, fusion);
    for (const view of views) if (view.root && ["lines", "flame"].includes(view.id)) { view.root.remove(); view.root = null; }
    show(views.find((view) => view.button.getAttribute("aria-selected") === "true").id);
    document.querySelector(".view:not([hidden]) .choice [aria-pressed=true]")?.focus();
  });

  function openAddress(address) {
    const [id, ...rest] = decodeURI(address.replace(/^#/, "")).split("/");
    show(id);
    if (id === "lines" && rest.length) app.showLine(rest.join("/"));
  }

  app.lineLink = (frame, text) => {
    const key = `${data.fileOf(frame)}:${data.lineOf(frame)}`;
    return element("button", { type: "button", class: "jump mono", text, title: key, onclick: (event) => {
      event.stopPropagation();
      show("lines");
      app.showLine(key);
      app.remember(`lines/${key}`);
      scrollTo(0, nav.offsetTop);
    } });
  };

  for (const view of views) {
    view.button = element("button", { type: "button", role: "tab", text: view.title, id: `tab-${view.id}`, onclick: () => { show(view.id); app.remember(view.id); } });
    nav.append(view.button);
  }
  nav.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = views.findIndex((view) => view.button === event.target);
    const next = views[(at + step + views.length) % views.length];
    show(next.id).button.focus();
    app.remember(next.id);
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || /INPUT|TEXTAREA/.test(event.target.tagName)) return;
    const box = [...document.querySelectorAll("input[type=search]")].find((input) => input.offsetParent);
    if (box) { event.preventDefault(); box.focus(); }
  });
  addEventListener("hashchange", () => openAddress(location.hash));
  openAddress(location.hash);
  document.documentElement.dataset.ready = "yes";
}

main().catch((error) => {
  document.querySelector("main").append(element("p", { class: "empty", text: `This page could not be drawn: ${error}. It needs a browser of 2023 or later.` }));
  document.documentElement.dataset.ready = "failed";
});
