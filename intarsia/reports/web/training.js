// What forward saves for backward, and what backward computes again.

function trainingPart() {
  const saved = Data.nowGraph().saved, part = el("div", { class: "part" });
  part.append(el("p", { class: "big" }, "Forward saves ", el("b", {}, bytes(saved.bytes)), " in ", el("b", {}, count(saved.tensors.length, "tensor")), " for backward, with memory_budget = " + saved.budget + ". With 1 it would be ", el("b", {}, bytes(saved.most)), ", with 0 ", el("b", {}, bytes(saved.least)), "."));
  part.append(el("p", { class: "note" }, "A tensor that is saved takes memory until backward has read it. One that is not is computed again from what is saved. options={\"memory_budget\": 0.5} saves less and computes more."));
  const groups = new Map();
  for (const t of saved.tensors) {
    const key = JSON.stringify([t.name, t.type, t.place]), g = groups.get(key) || { ...t, times: 0, modules: new Set() };
    g.times++;
    if (t.module) g.modules.add(t.module);
    groups.set(key, g);
  }
  const rows = [...groups.values()].sort((x, y) => y.bytes * y.times - x.bytes * x.times), most = rows.length ? rows[0].bytes * rows[0].times : 1;
  part.append(el("div", { class: "card scroll" }, el("h2", {}, "Saved"), rows.length ? longTable([["bytes", "n"], [""], ["tensors", "n"], ["made by"], ["type"], ["module"], ["line"]], rows.map((t) => ({ places: t.place === null ? [] : [t.place], cells: [bytes(t.bytes * t.times), bar(t.bytes * t.times / (most || 1)), t.times > 1 ? "×" + t.times : "", el("span", { class: "mono" }, shown(t.name)), el("span", { class: "mono" }, shown(t.type)), el("span", { class: "mono", title: shown([...t.modules].join("\n")) }, shown(t.modules.size > 1 ? [...t.modules][0] + " and " + (t.modules.size - 1) + " more" : [...t.modules].join(""))), t.place === null ? "" : lineButton(t.place)] })), 60) : el("p", { class: "note" }, "Nothing beside the arguments and parameters.")));
  if (saved.again.length) part.append(el("div", { class: "card scroll" }, el("h2", {}, "Computed again in backward"), longTable([["times", "n"], ["operator"], [""]], saved.again.map(([name, n, costly]) => ({ cells: [String(n), el("span", { class: "mono" }, shown(name)), costly ? count(costly, "product or library call") : "cheap"] })))));
  return part;
}
