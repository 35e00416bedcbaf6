// What does the page do when it is opened? Inflates its data, makes the views when they are first shown, minds the address.

function sectionView(data, app, section) {
  const columns = section.columns.map((column) => (column.kind !== "line" ? column : {
    ...column, show: (cell, frame) => { if (frame !== null && frame !== NO_STACK) cell.append(userLink(data, app, frame)); },
  }));
  const table = new Table({ label: section.title, columns });
  return element("div", { class: "view" }, element("p", { class: "note", text: section.note }),
    element("div", { class: "bar" }, ...table.searchBox(`Search ${section.title.toLowerCase()}`)), table.root);
}

function userLink(data, app, frame) {
  const user = data.userFrame(frame);
  return app.lineLink(user, `${baseName(data.fileOf(user))}:${data.lineOf(user)}`);
}

function instructionsView(data, app) {
  const one = data.instructions, total = data.total_ns || 1;
  const table = new Table({
    label: "Instructions",
    columns: [
      { name: "time", kind: "ns", values: one.total_ns },
      { name: "share", kind: "fraction", values: [...one.total_ns].map((ns) => ns / total), width: "170px" },
      { name: "runs", kind: "int", values: one.count, width: "84px" },
      { name: "mean", kind: "ns", values: one.total_ns.map((ns, i) => ns / one.count[i]) },
      { name: "instruction", kind: "text", values: one.name, width: "minmax(200px, 1fr)" },
      { name: "opcode", kind: "text", values: one.opcode, width: "140px", least: 140 },
      { name: "category", kind: "text", values: one.category, width: "130px", least: 130 },
      { name: "line", kind: "line", values: one.frame, width: "170px", show: (cell, frame) => { if (frame !== NO_STACK) cell.append(userLink(data, app, frame)); } },
      { name: "stack", kind: "text", values: one.how, width: "90px", least: 90 },
      { name: "traced as", kind: "text", values: one.op_name, width: "minmax(200px, 1.4fr)" },
    ],
    search: (i) => `${one.name[i]} ${one.opcode[i]} ${one.category[i]} ${one.op_name[i]} ${one.how[i]} ${one.frame[i] < 0 ? "" : `${data.fileOf(data.userFrame(one.frame[i]))}:${data.lineOf(data.userFrame(one.frame[i]))}`}`,
  });
  return element("div", { class: "view" }, element("p", { class: "note", text: "Every instruction that ran, with the line that most of its time belongs to, and how that was found." }),
    element("div", { class: "bar" }, ...table.searchBox("Search instructions")), table.root);
}

async function main() {
  const app = { remember: (place) => history.replaceState(null, "", `#${encodeURI(place)}`) };
  const data = complete(await inflate(document.getElementById("packed").textContent));
  apportion(data, data.fusion);
  const views = [
    { id: "lines", title: "Lines", make: () => linesView(data, app) },
    { id: "flame", title: "Flame graph", make: () => flameView(data, app) },
    { id: "timeline", title: "Timeline", make: () => timelineView(data, app) },
    { id: "instructions", title: "Instructions", make: () => instructionsView(data, app) },
    ...data.sections.map((section) => ({ id: section.id, title: section.title, make: () => sectionView(data, app, section) })),
  ];
  const nav = document.querySelector("nav.views"), stage = document.querySelector("main");

  function show(id) {
    const view = views.find((one) => one.id === id) ?? views[0];
    for (const one of views) {
      one.button.setAttribute("aria-selected", String(one === view));
      one.button.tabIndex = one === view ? 0 : -1;
      if (one.root) one.root.hidden = one !== view;
    }
    view.button.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (!view.root) { view.root = view.make(); view.root.setAttribute("role", "tabpanel"); stage.append(view.root); view.root.dispatchEvent(new Event("shown")); }
    return view;
  }

  // Whose the time of a fusion is: all views of lines are made anew.
  app.fusionChoice = () => choice("Time of a fusion", { split: "Fusions split", root: "Whole to root" }, data.fusion, (fusion) => {
    apportion(data, fusion);
    for (const one of views) if (one.root && ["lines", "flame"].includes(one.id)) { one.root.remove(); one.root = null; }
    show(views.find((one) => one.button.getAttribute("aria-selected") === "true").id);
    document.querySelector(".view:not([hidden]) .choice [aria-pressed=true]")?.focus();
  });

  function follow(address) {
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
    const at = views.findIndex((one) => one.button === event.target);
    const next = views[(at + step + views.length) % views.length];
    show(next.id).button.focus();
    app.remember(next.id);
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || /INPUT|TEXTAREA/.test(event.target.tagName)) return;
    const box = [...document.querySelectorAll("input[type=search]")].find((one) => one.offsetParent);
    if (box) { event.preventDefault(); box.focus(); }
  });
  addEventListener("hashchange", () => follow(location.hash));
  follow(location.hash);
  document.documentElement.dataset.ready = "yes";
}

main().catch((error) => {
  document.querySelector("main").append(element("p", { class: "empty", text: `This page could not be drawn: ${error}. A browser of 2023 or later is needed.` }));
  document.documentElement.dataset.ready = "failed";
});
