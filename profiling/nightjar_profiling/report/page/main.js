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
  const note = "Every instruction that ran, with the line that has most of its time, and how the line was determined. The shape is that on one device.";
  return !data.instructions.sharding.some(Boolean) ? note : note + " Sharding: tiles along each dimension of the whole array; not split: each device holds as many elements as there are, replicated or as a partial sum.";
}

// Notes what is shown in the address; a frame inside a notebook has none.
function remember(place) {
  try { history.replaceState(null, "", `#${encodeURI(place)}`); } catch (error) { if (error.name !== "SecurityError") throw error; }
}

// The tabs, in the order in which a person asks, with their views; the last has all others.
const TABS = {
  "What is slow": ["lines", "flame", "kernels", "instructions", "categories"], "What to do": ["next"], Modules: ["modules"],
  When: ["timeline", "steps", "ranges", "host"], Devices: ["devices", "collectives", "stragglers", "roofline"],
  Memory: ["memory"], Compilation: ["compile", "recompiled"], Details: [],
};

// The tabs that have views; a trace without stacks has no lines.
function groupViews(data, views) {
  const known = Object.values(TABS).flat(), found = new Map(views.map((view) => [view.id, view]));
  if (!data.places.size) ["lines", "flame"].forEach((id) => found.delete(id));
  const others = [...found.keys()].filter((id) => !known.includes(id));
  return Object.entries(TABS).map(([title, ids]) => ({ title, views: (ids.length ? ids : others).filter((id) => found.has(id)).map((id) => found.get(id)) }))
    .filter((tab) => tab.views.length);
}

async function main() {
  const app = { remember };
  const data = complete(await inflate(document.getElementById("packed").textContent));
  apportion(data, data.fusion);
  const tabs = groupViews(data, [
    { id: "lines", title: "Lines", make: () => linesView(data, app) },
    { id: "flame", title: "Flame graph", make: () => flameView(data, app) },
    { id: "timeline", title: "Timeline", make: () => timelineView(data, app) },
    { id: "instructions", title: "Instructions", make: () => instructionsView(data, app) },
    ...data.sections.map((section) => ({ id: section.id, title: section.title, make: () => (section.id === "next" ? nextView : sectionView)(data, app, section) })),
  ]);
  const views = tabs.flatMap((tab) => tab.views);
  const nav = document.querySelector("nav.views"), stage = document.querySelector("main");
  const parts = element("nav", { class: "views parts", role: "tablist", "aria-label": "Parts of the view" });
  nav.after(parts);
  const select = (button, chosen) => { button.setAttribute("aria-selected", String(chosen)); button.tabIndex = chosen ? 0 : -1; };

  function show(id) {
    const view = views.find((candidate) => candidate.id === id) ?? views[0];
    for (const other of views) {
      select(other.button, other === view);
      other.root?.toggleAttribute("hidden", other !== view);
    }
    for (const tab of tabs) {
      const chosen = tab.views.includes(view);
      select(tab.button, chosen);
      if (chosen) parts.replaceChildren(...(tab.views.length > 1 ? tab.views.map((part) => part.button) : []));
    }
    if (!view.root) { view.root = view.make(); view.root.setAttribute("role", "tabpanel"); stage.append(view.root); view.root.dispatchEvent(new Event("shown")); }
    return view;
  }

  // How the time of a fusion is attributed; recreates the views that depend on it.
  app.fusionChoice = () => choice("Time of a fusion", { split: "Fusions split", root: "Whole to root" }, data.fusion, (fusion) => {
    apportion(data, fusion);
    for (const view of views) if (view.root && ["lines", "flame"].includes(view.id)) { view.root.remove(); view.root = null; }
    show(views.find((view) => view.button.tabIndex === 0).id);
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

  const makeButton = (title, id, kind) => element("button", { type: "button", role: "tab", text: title, id: `${kind}-${id}`, onclick: () => { show(id); app.remember(id); } });
  for (const view of views) view.button = makeButton(view.title, view.id, "part");
  for (const tab of tabs) nav.append(tab.button = makeButton(tab.title, tab.views[0].id, "tab"));
  for (const bar of [nav, parts]) bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], buttons = [...bar.children];
    if (!step) return;
    const next = buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length];
    next.click();
    next.focus();
  });
  addEventListener("hashchange", () => openAddress(location.hash));
  openAddress(location.hash);
  document.documentElement.dataset.ready = "yes";
}

main().catch((error) => {
  document.querySelector("main").append(element("p", { class: "empty", text: `This page could not be drawn: ${error}. It needs a browser of 2023 or later.` }));
  document.documentElement.dataset.ready = "failed";
});
