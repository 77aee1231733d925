// The page: header, tiles, tabs, keys. Parts are made when they are first looked at.

const Page = {
  parts: new Map(), tab: "", repaint: null,

  tabs() {
    const facts = Data.facts, graph = Data.nowGraph(), program = Data.nowProgram();
    const stops = facts.breaks.length + facts.fallbacks.length + facts.recompiles.length;
    return [
      facts.graphs.length > 1 && ["graphs", "Graphs", graphsPart, facts.graphs.length],
      ["code", "Code", codePart],
      ["fusion", "Fusion", fusionPart],
      ["ir", "IR", irPart],
      ["memory", "Memory", memoryPart],
      program && program.times && ["speed", "Speed", speedPart],
      facts.events.length && ["time", "Compile time", timePart],
      (stops || graph && graph.guards.length) && ["checks", "Guards and breaks", checksPart, stops || 0],
      graph && graph.saved && graph.saved.most > 0 && ["training", "Training", trainingPart],
    ].filter(Boolean);
  },

  show(tab) {
    const tabs = this.tabs(), found = tabs.find((t) => t[0] === tab) || tabs[0];
    this.tab = found[0];
    Light.now = null; Light.others = []; this.repaint = null;
    document.getElementById("tabs").replaceChildren(...tabs.map(([name, label, , n]) => {
      const on = name === this.tab;
      return el("button", { type: "button", role: "tab", id: "tab-" + name, "aria-selected": String(on), "aria-controls": "main", tabindex: on ? 0 : -1, onclick: () => this.show(name) }, label, n ? el("span", { class: "count" }, String(n)) : "");
    }));
    const part = found[2](); // made anew: it shows what is lit now
    part.setAttribute("role", "tabpanel"); part.setAttribute("aria-labelledby", "tab-" + this.tab);
    this.part = part;
    document.getElementById("main").replaceChildren(part);
    const chosen = document.getElementById("tab-" + this.tab);
    if (chosen.scrollIntoView) chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
    history.replaceState(null, "", "#" + this.tab);
    Light.refresh();
  },

  showLine(place) {
    if (this.tab !== "code") this.show("code");
    requestAnimationFrame(() => requestAnimationFrame(() => this.part.goTo && this.part.goTo(place)));
  },

  choose(graph, program, tab) {
    Light.clear();
    Data.choose({ graph, program: Data.facts.graphs[graph].programs.length ? program : -1 });
    const at = Data.views.findIndex((v) => v.graph === Data.graph && v.program === Data.program);
    document.getElementById("graphs").value = String(at);
    tiles();
    this.show(tab || this.tab);
  },

  search(query) {
    const word = query.trim().toLowerCase();
    if (!word) return;
    if (!(this.part.search && this.part.search(word)) && this.tab !== "code") { this.show("code"); requestAnimationFrame(() => this.part.search(word)); }
  },
};

function tiles() {
  const facts = Data.facts, graph = Data.nowGraph(), program = Data.nowProgram(), found = [];
  const add = (value, words, tab, bad) => found.push(el("button", { type: "button", class: "tile" + (bad ? " bad" : ""), onclick: () => Page.show(tab) }, el("b", {}, value), el("span", {}, words)));
  if (graph) {
    add(graph.ops.length.toLocaleString("en"), "operations", "code");
    if (program && program.units) {
      const kernels = program.units.filter((u) => u.kind === "kernel"), calls = program.units.filter((u) => u.kind === "library").reduce((n, u) => n + u.calls, 0);
      add(program.steps.length.toLocaleString("en"), "steps in a call", "code");
      add(String(kernels.length), kernels.length === 1 ? "kernel made" : "kernels made", "code");
      add(String(calls), calls === 1 ? "library call" : "library calls", "code");
    }
  }
  const stops = facts.breaks.length;
  add(String(stops), stops === 1 ? "graph break" : "graph breaks", "checks", stops > 0);
  if (program && program.memory) add(bytes(peakOf(program.memory).bytes), "memory in use" + (graph.eagerMemory ? " (eager " + bytes(graph.eagerMemory) + ")" : ""), "memory");
  if (program && program.times && program.times.seconds) add(seconds(program.times.seconds), "all steps, " + percent(program.times.best / program.times.seconds) + " of the limit", "speed");
  if (facts.seconds) add(seconds(facts.seconds), graph && graph.captureSeconds ? "to capture and compile" : "in the passes", "time");
  document.getElementById("tiles").replaceChildren(...found);
}

function header() {
  const facts = Data.facts;
  document.title = shown(facts.title) + " · Intarsia report";
  document.getElementById("title").textContent = shown(facts.title);
  const made = facts.made;
  document.getElementById("made").textContent = ["Intarsia " + made.intarsia, "torch " + made.torch, "Python " + made.python, made.time].map(shown).join(" · ");
  const pick = document.getElementById("graphs");
  pick.replaceChildren(...Data.views.map((v, k) => {
    const graph = facts.graphs[v.graph], half = v.program >= 0 ? graph.programs[v.program].half : "";
    return el("option", { value: k }, `${graph.index} ${shown(graph.function)}${half ? ", " + half : ""}`);
  }));
  document.getElementById("pick").hidden = Data.views.length < 2;
  pick.addEventListener("change", () => Page.choose(Data.views[pick.value].graph, Data.views[pick.value].program));
}

function keys() {
  const dialog = document.getElementById("keys");
  const rows = [["1 to 9", "the parts of the report"], ["/", "search: kernels, modules, operations, your source; in IR its text"], ["↑ ↓, j k", "walk through a list"], ["Enter", "keep what is lit, or open it"], ["Esc", "let go; leave the search"], ["← →", "between tabs, or values of the memory plan"], ["[ ]", "the graph before, the next graph"], ["t", "light, dark, or as the system says"]];
  const words = [["graph", "what was captured of your function: torch operations without Python between them"], ["kernel", "a loop nest that was generated for you and compiled, for one or many operations"], ["library call", "an operator that torch or its libraries carry out"], ["step", "one kernel or library call of the program that runs in place of the graph"], ["guard", "what has to be as it was for a compiled graph to be used again"], ["pass", "one rewrite of the IR, the compiler's own form of the graph"], ["arena", "one block of memory that a call works in"]];
  const list = (items, key) => el("dl", { class: "facts" }, items.map(([a, b]) => [el("dt", {}, key ? el("kbd", {}, a) : a), el("dd", {}, b)]));
  dialog.replaceChildren(el("h2", {}, "Keys"), list(rows, true), el("h2", {}, "Words"), list(words), el("p", { style: { paddingTop: "12px" } }, el("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

function turnTheme() {
  const root = document.documentElement, order = ["auto", "light", "dark"];
  root.dataset.theme = order[(order.indexOf(root.dataset.theme) + 1) % 3];
  try { localStorage.setItem("intarsia-theme", root.dataset.theme); } catch { /* a page from a file may have no store */ }
  for (const list of Light.lists) list.mark();
  if (Page.repaint) Page.repaint();
}

function listen() {
  const search = document.getElementById("search");
  search.addEventListener("keydown", (e) => { if (e.key === "Enter") Page.search(search.value); if (e.key === "Escape") { search.value = ""; search.blur(); } e.stopPropagation(); });
  document.getElementById("theme").addEventListener("click", turnTheme);
  document.getElementById("help").addEventListener("click", keys);
  document.getElementById("tabs").addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key], tabs = Page.tabs();
    if (!step) return;
    const at = tabs.findIndex((t) => t[0] === Page.tab);
    Page.show(tabs[(at + step + tabs.length) % tabs.length][0]);
    document.getElementById("tab-" + Page.tab).focus();
  });
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) || document.getElementById("keys").open) return;
    const tabs = Page.tabs();
    if (/^[1-9]$/.test(e.key) && tabs[e.key - 1]) Page.show(tabs[e.key - 1][0]);
    else if (e.key === "/") { search.focus(); search.select(); e.preventDefault(); }
    else if (e.key === "?") keys();
    else if (e.key === "t") turnTheme();
    else if (e.key === "Escape") { if (!(Page.part.unzoom && Page.part.unzoom())) Light.clear(); }
    else if (e.key === "[" || e.key === "]") {
      const at = Data.views.findIndex((v) => v.graph === Data.graph && v.program === Data.program) + (e.key === "]" ? 1 : -1);
      if (Data.views[at]) Page.choose(Data.views[at].graph, Data.views[at].program);
    }
  });
  window.addEventListener("hashchange", () => Page.show(location.hash.slice(1)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (Page.repaint) Page.repaint(); for (const list of Light.lists) list.mark(); });
}

async function start() {
  const root = document.documentElement;
  try { root.dataset.theme = localStorage.getItem("intarsia-theme") || "auto"; } catch { /* no store */ }
  const asked = new URLSearchParams(location.search).get("theme");
  if (["light", "dark"].includes(asked)) root.dataset.theme = asked;
  if (typeof DecompressionStream === "undefined") { document.getElementById("loading").textContent = "This browser cannot unpack the report: it needs DecompressionStream, which Chromium has since 80, Safari since 16.4 and Firefox since 113."; return; }
  await Data.open();
  header();
  listen();
  Data.choose(Data.views[0] || { graph: 0, program: -1 });
  tiles();
  Page.show(location.hash.slice(1) || (Data.facts.graphs.length > 1 ? "graphs" : "code"));
  tellStatus(null);
  root.dataset.ready = String(Math.round(performance.now()));
}

window.addEventListener("error", (e) => { document.documentElement.dataset.failed = String(e.message); });
window.addEventListener("unhandledrejection", (e) => { document.documentElement.dataset.failed = String(e.reason); });
start();
