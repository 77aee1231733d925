// How near each step is to what the machine can do: the roofline, and the steps, the slowest first.

function speedPart() {
  const program = Data.nowProgram(), times = program && program.times;
  if (!times) return emptyPart(program && program.half === "backward" ? "Backward was not timed." : "Nothing was timed: intarsia.report(fn, *args, timed=True) times every kernel and library call.");
  if (times.reason) return emptyPart("Not measured: " + shown(times.reason));
  if (!times.steps.length) return emptyPart("The program has no steps.");
  const part = el("div", { class: "part" });
  const share = times.seconds ? times.best / times.seconds : 1;
  part.append(el("p", { class: "big" }, "All steps of a call take ", el("b", {}, seconds(times.seconds)), " on ", shown(times.device), "; they would take ", el("b", {}, seconds(times.best)), " (" + percent(share) + ") if each reached what the machine can do at most: ",
    times.copy ? "copies of " + rate(times.copy, "B/s") : "", times.products.map(([type, r]) => [", matrix products of ", rate(r, "op/s"), " in " + shown(type)]), "."));
  part.append(el("p", { class: "note" }, "The line is the roof: to the left of its bend memory is the limit, to the right arithmetic. A point on the line cannot be faster; one above it found what it reads in a cache. Large points take most of the time. Steps that only move memory are in the table alone."));
  const units = new Map((program.units || []).map((u) => [u.name, u]));
  if (times.steps.some((s) => s.operations > 0)) part.append(el("div", { class: "card" }, roofline(times, units)));
  const rows = times.steps.map((s) => ({
    places: s.places,
    cells: [seconds(s.seconds), bar(s.seconds / times.steps[0].seconds), percent(s.seconds / times.seconds), s.calls > 1 ? "×" + s.calls : "", bytes(s.bytes), s.operations ? rate(s.operations, "") : "",
      s.limit ? el("span", { class: "whole" }, bar(s.share, s.share > 0.6 ? "good" : s.share > 0.3 ? "" : "bad"), " " + percent(s.share) + " of " + (s.limit === "copy" ? "memory" : "products")) : "", el("span", { class: "mono" }, shown(s.name)), lineButtons(s.places)],
  }));
  part.append(el("div", { class: "card scroll" }, el("h2", {}, "Steps"), longTable([["time", "n"], [""], ["of all", "n"], ["runs", "n"], ["moves", "n"], ["operations", "n"], ["reaches"], ["step"], ["lines"]], rows, 60)));
  return part;
}

function roofline(times, units) {
  const width = innerWidth < 600 ? 430 : 900, height = 330, left = 66, right = 14, top = 12, bottom = 34;
  const dots = times.steps.filter((s) => s.seconds > 0 && s.operations > 0 && s.bytes > 0).map((s) => ({ s, x: s.operations / s.bytes, y: s.operations / s.seconds }));
  const roof = Math.max(0, ...times.products.map((p) => p[1]));
  const bend = times.copy && roof ? roof / times.copy : 1;
  const xs = [...dots.map((d) => d.x), bend], ys = [...dots.map((d) => d.y), roof || 1];
  const lowX = Math.floor(Math.log10(Math.max(1e-3, Math.min(...xs)))), highX = Math.ceil(Math.log10(Math.max(...xs) * 2));
  const lowY = Math.floor(Math.log10(Math.max(1, Math.min(...ys)))), highY = Math.ceil(Math.log10(Math.max(...ys) * 1.2));
  const x = (v) => left + (width - left - right) * (Math.log10(Math.max(v, 10 ** lowX)) - lowX) / (highX - lowX);
  const y = (v) => height - bottom - (height - top - bottom) * (Math.log10(Math.max(v, 10 ** lowY)) - lowY) / (highY - lowY);
  const made = svg("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", style: "max-height: 400px", role: "img", "aria-label": "Roofline: operations a second by operations a byte" });
  for (let e = lowX; e <= highX; e++) made.append(svg("line", { class: "axis", x1: x(10 ** e), x2: x(10 ** e), y1: top, y2: height - bottom }), svg("text", { x: x(10 ** e), y: height - bottom + 14, "text-anchor": "middle" }, String(10 ** e >= 1 ? 10 ** e : Number((10 ** e).toPrecision(1)))));
  for (let e = lowY; e <= highY; e++) made.append(svg("line", { class: "axis", y1: y(10 ** e), y2: y(10 ** e), x1: left, x2: width - right }), svg("text", { x: left - 6, y: y(10 ** e) + (e === lowY ? -2 : 4), "text-anchor": "end" }, rate(10 ** e, "op/s")));
  made.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "operations for each byte moved"));
  if (times.copy) {
    const end = roof ? bend : 10 ** highX;
    const points = [[10 ** lowX, times.copy * 10 ** lowX], [end, times.copy * end], ...(roof ? [[10 ** highX, roof]] : [])];
    made.append(svg("path", { class: "roof", d: points.map(([a, b], k) => (k ? "L" : "M") + x(a) + " " + y(b)).join(" ") }));
  }
  for (const { s, x: a, y: b } of dots.sort((p, q) => q.s.seconds - p.s.seconds)) {
    const unit = units.get(s.name);
    const dot = svg("circle", { class: "dot " + (unit ? unit.kind : "library"), cx: x(a), cy: y(b), r: 4 + 14 * Math.sqrt(s.seconds / times.seconds), tabindex: 0, role: "img", "aria-label": shown(s.name) }, svg("title", {}, `${shown(s.name)}: ${seconds(s.seconds)}${s.limit ? ", " + percent(s.share) + " of its limit" : ""}`));
    lightable(dot, s.places);
    made.append(dot);
  }
  return made;
}
