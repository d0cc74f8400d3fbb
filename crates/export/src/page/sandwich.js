// A function between its callers and its callees.

class SandwichView {
  constructor(host, state, palette) {
    this.state = state;
    this.fn = -1;
    this.heading = element("h2", { tabIndex: -1 }, "No function is chosen");
    this.facts = element("p", {}, "Choose a function in the table, or a frame of the flame graph.");
    const both = () => [
      ...countColumns(state, isTime(state.model) ? "time" : "samples", (row, which) => row.counts[which]),
      ...functionColumns(state),
    ];
    this.callers = new Table("Callers, of the function's outermost calls", both(), { limit: 12 });
    this.callees = new Table("Callees", both(), { limit: 12 });
    const graph = label => {
      const place = element("div", { className: "sandwich-graph" });
      const detail = element("p", { className: "detail", role: "status" });
      const view = new FlameView(place, palette, label, {
        onFocus: frame => { detail.textContent = frame < 0 ? "" : state.describe(view, frame); },
        onOpen: frame => state.openSandwich(view.graph.fn[frame]),
      });
      return { place, detail, view };
    };
    this.above = graph("Callers, the nearest at the bottom");
    this.below = graph("Callees, the nearest at the top");
    this.above.view.upwards = true;
    this.below.view.upwards = false;
    this.parts = element("div", { hidden: true },
      element("div", { className: "columns" }, this.callers.element, this.callees.element),
      element("h3", {}, "Callers"), this.above.place, this.above.detail,
      element("h3", {}, "Callees"), this.below.place, this.below.detail);
    host.append(this.heading, this.facts, this.parts);
  }

  open(fn) {
    this.fn = fn;
    this.update();
    this.heading.focus();
  }

  update() {
    const { state, fn } = this, { model, counts } = state;
    if (fn < 0) return;
    this.heading.textContent = model.names[fn];
    const shares = counts.map(count =>
      `self ${shown(model, count.fnSelf[fn])}${isTime(model) ? " ms" : ""} (${percent(count.fnSelf[fn], count.samples)} %), ` +
      `total ${shown(model, count.fnTotal[fn])}${isTime(model) ? " ms" : ""} (${percent(count.fnTotal[fn], count.samples)} %)`);
    const module = model.modules[model.moduleOf[fn]], line = model.lines[fn];
    this.facts.textContent = [module, line, shares.join("; other recording: ")].filter(Boolean).join(" · ");
    this.parts.hidden = false;
    const found = state.found, basis = state.basis;
    for (const [part, graph, table] of [
      [this.above, callerGraph(model, counts, basis, fn), this.callers],
      [this.below, calleeGraph(model, counts, basis, fn), this.callees],
    ]) {
      part.place.style.height = `${Math.min(graph.levels.length, 16) * ROW + 2}px`;
      part.view.found = found;
      part.view.byCount = state.byCount;
      part.view.show(graph);
      table.set(this.nearest(graph));
    }
  }

  // The frames next to the function, as rows. Frame 1 is the function itself.
  nearest(graph) {
    const rows = [];
    for (let frame = 2; frame < graph.fn.length && graph.depth[frame] <= 2; frame++) {
      const fn = graph.fn[frame];
      rows.push({ fn, total: graph.mine[frame], counts: [graph.mine[frame], graph.other ? graph.other[frame] : 0] });
    }
    return rows;
  }
}
