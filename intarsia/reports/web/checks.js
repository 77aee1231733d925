// Where graphs break, what runs in eager, why calls are compiled again, and what is checked before each call.

function checksPart() {
  const facts = Data.facts, graph = Data.nowGraph(), part = el("div", { class: "part" });
  const section = (title, words, items) => { if (items.length) part.append(el("h2", { style: { padding: "4px 0 8px" } }, title + " (" + items.length + ")"), el("p", { class: "note" }, words), ...items); };
  section("Graph breaks", "A break splits a function into several graphs; between them Python runs as ever. Fewer breaks mean more to fuse, and less work for Python in each call.", facts.breaks.map(breakCard));
  section("Runs in eager", "These were not compiled, and run as without Intarsia.", facts.fallbacks.map((f) => el("div", { class: "card" }, el("h2", {}, shown(f.what)), el("dl", { class: "facts" }, f.place !== null ? entry("at", lineButton(f.place), " ", el("code", {}, coloured(f.text || Data.source(f.place).trim()))) : "", entry("why", shown(f.reason)), f.remedy ? entry("what to do", shown(f.remedy)) : ""))));
  section("Compiled again", "These calls fitted nothing that was compiled before.", facts.recompiles.map((r) => el("div", { class: "card" }, el("h2", {}, shown(r.function)), el("dl", { class: "facts" }, r.part ? [entry("what", el("code", {}, shown(r.part))), entry("was", shown(r.got)), entry("expected", shown(r.expected))] : entry("why", shown(r.reason)), r.place !== null ? entry("needed by", lineButton(r.place), " ", el("code", {}, coloured(Data.source(r.place).trim()))) : "", r.remedy ? entry("what to do", shown(r.remedy)) : ""))));
  if (!facts.breaks.length && !facts.fallbacks.length && !facts.recompiles.length) part.append(el("p", { class: "big" }, "No graph break, nothing in eager, nothing compiled twice."));
  const guards = graph ? graph.guards : [];
  if (guards.length) {
    const kinds = [["Tensors", (t) => t.includes(", strides ")], ["Sizes", (t) => t.includes(".shape[")], ["Values and settings", (t) => !QUIET.test(t)], ["Functions, modules, attributes", () => true]];
    const sorted = kinds.map(() => []);
    for (const g of guards) sorted[kinds.findIndex(([, test]) => test(g.text))].push(g);
    part.append(el("h2", { style: { padding: "8px 0" } }, "Checked before each call of graph " + graph.index + " (" + guards.length.toLocaleString("en") + ")"), el("p", { class: "note" }, "A call that fails one of these is captured and compiled anew. They run as one small program, not one by one."));
    kinds.forEach(([name], k) => {
      if (!sorted[k].length) return;
      const body = el("div", { class: "scroll" });
      const fold = el("details", { class: "card", open: k < 3 && sorted[k].length < 60 }, el("summary", {}, el("b", {}, name), " ", String(sorted[k].length)), body);
      const show = () => { if (!body.firstChild) body.append(longTable([["check"], ["needed by"]], sorted[k].map((g) => ({ places: g.place === null ? null : [g.place], cells: [el("span", { class: "mono" }, shown(g.text)), g.place === null ? "" : lineButton(g.place)] })), 60)); };
      fold.addEventListener("toggle", () => { if (fold.open) show(); });
      if (fold.open) show();
      part.append(fold);
    });
  }
  return part;
}

const QUIET = /: (the same |keys |no '|no attribute |empty$|type builtins\.)|^__\w+__|^self[.[]/;

function breakCard(b) {
  return el("div", { class: "card" }, el("h2", {}, lineButton(b.place), " in " + shown(b.function)), el("p", { class: "mono", style: { padding: "4px 0 6px" } }, coloured(b.text || Data.source(b.place).trim())),
    el("dl", { class: "facts" }, entry("why", shown(b.reason)), entry("what to do", shown(b.remedy)), b.callers.length ? entry("called from", lineButtons(b.callers, 5)) : "", b.goesOn.length ? entry("goes on", b.goesOn.map(shown).join(" or ")) : ""));
}
