// All graphs of a program, in the order of their capture.

function graphsPart() {
  const facts = Data.facts, part = el("div", { class: "part" });
  const spent = (g) => g.captureSeconds + g.compileSeconds, most = Math.max(1e-9, ...facts.graphs.map(spent));
  part.append(el("p", { class: "big" }, el("b", {}, count(facts.graphs.length, "graph")), " with ", el("b", {}, count(facts.graphs.reduce((n, g) => n + g.ops.length, 0), "operation")), "; ", count(facts.breaks.length, "graph break"), ", ", count(facts.recompiles.length, "recompile"), ", ", count(facts.fallbacks.length, "fallback"), " to eager."));
  const rows = facts.graphs.map((g, k) => {
    const places = [...new Set(g.ops.map((o) => o.place).filter((p) => p !== null))];
    const kernels = g.programs.reduce((n, p) => n + (p.units || []).filter((u) => u.kind === "kernel").length, 0), calls = g.programs.reduce((n, p) => n + (p.units || []).filter((u) => u.kind === "library").reduce((m, u) => m + u.calls, 0), 0);
    return { places, open: () => Page.choose(k, 0, "code"), cells: [String(g.index), el("b", {}, shown(g.function)), places.length ? lineButton(places[0]) : "", String(g.ops.length), g.eager ? "runs in eager" : String(kernels), String(calls), seconds(spent(g)), bar(spent(g) / most), g.cached ? "from the cache" : g.programs.map((p) => p.half).filter(Boolean).join(", "), g.broken ? ["ends at ", lineButton(g.broken.place), " ", shown(g.broken.reason)] : ""] };
  });
  part.append(el("div", { class: "card scroll" }, longTable([["#", "n"], ["function"], ["begins"], ["operations", "n"], ["kernels", "n"], ["library calls", "n"], ["to compile", "n"], [""], [""], ["break"]], rows, 200)));
  return part;
}
