// Puts the page together: one state, and views that follow it.

class State {
  constructor(model) {
    this.model = model;
    this.filter = noFilter();
    // Whether the samples are there, which filters need.
    this.isWhole = false;
    this.counts = count(model, this.filter);
    this.found = null;
    this.basis = 0;
    this.byCount = false;
    this.onChange = () => {};
    this.onSandwich = () => {};
  }

  setFilter(changes) {
    Object.assign(this.filter, changes);
    if (!this.isWhole) return;
    this.counts = count(this.model, this.filter);
    this.onChange();
  }

  openSandwich(fn) { this.onSandwich(fn); }

  // A frame in words.
  describe(view, frame) {
    const { model, counts } = this, { graph } = view, fn = graph.fn[frame];
    const shares = counts.map((count, index) => {
      const samples = (index ? graph.other : graph.mine)[frame];
      return `${inWords(model, samples)}, ${percent(samples, count.samples)} %`;
    });
    const text = [view.name(frame)];
    if (frame > 0 && model.modules[model.moduleOf[fn]]) text.push(`in ${model.modules[model.moduleOf[fn]]}`);
    if (frame > 0 && graph.self) {
      text.push(`self ${isTime(model) ? inWords(model, graph.self[frame]) : graph.self[frame]}`);
    }
    if (frame > 0 && model.lines[fn]) text.push(model.lines[fn]);
    text.splice(1, 0, shares.join("; other recording: "));
    return text.join(" · ");
  }
}

// What is counted: samples, microseconds, or events.
const unitOf = model => model.recordings[0].info.unit?.[0] ?? "samples";

// Whether that is a time, which is stored in microseconds.
const isTime = model => model.recordings[0].info.unit?.[1] ?? false;

// An amount of it, in words.
function inWords(model, amount) {
  if (!isTime(model)) return `${amount} ${unitOf(model)}`;
  for (const [unit, size] of [["s", 1e6], ["ms", 1e3]]) {
    if (amount >= size) return `${(amount / size).toFixed(3)} ${unit}`;
  }
  return `${amount} µs`;
}

const byId = id => document.getElementById(id);

function bytesInWords(bytes) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= size) return `${(bytes / size).toFixed(1)} ${unit}`;
  }
  return `${bytes} bytes`;
}

// Two or more buttons of which one is pressed.
function choices(buttons, chosen) {
  const press = id => Object.keys(buttons).forEach(other => byId(other).setAttribute("aria-pressed", other === id));
  for (const [id, choose] of Object.entries(buttons)) {
    byId(id).addEventListener("click", () => { press(id); choose(); });
  }
  press(chosen);
}

function summarize(state) {
  // Nothing is filtered yet.
  const { model, counts: [whole] } = state, { info } = model.recordings[0];
  const complete = model.endings.reduce((sum, [name], i) => sum + (name === "end_of_stack" ? whole.endings[i] : 0), 0);
  const late = model.endings.reduce((sum, [, live], i) => sum + (live ? whole.endings[i] : 0), 0);
  const facts = [
    `${inWords(model, whole.samples)} over ${(info.duration / 1e9).toFixed(2)} s`, `${info.lost} lost`,
  ];
  if (whole.samples) facts.push(`${(complete * 100 / whole.samples).toFixed(1)} % complete`);
  if (info.unit) facts.push(`in ${info.samples} samples`);
  if (late) facts.push(`${isTime(model) ? inWords(model, late) : late} read late`);
  if (model.recordings.length > 1) facts.push(`compared with ${model.recordings[1].info.title}`);
  byId("title").textContent = info.title;
  byId("summary").textContent = facts.join(", ");
  document.title = `${info.title} – Backtrail`;
}

function about(host, model) {
  for (const [index, { info }] of model.recordings.entries()) {
    if (model.recordings.length > 1) host.append(element("h2", {}, index ? "The other recording" : "This recording"));
    const facts = {
      Recording: info.title, Command: info.command, Machine: info.host, Recorder: info.producer,
      Frequency: info.frequency ? `${info.frequency} samples per second of CPU time` : "",
      Samples: `${info.samples}, ${info.lost} lost`, Size: bytesInWords(info.trace_bytes),
    };
    const list = element("dl");
    for (const [name, value] of Object.entries(facts)) {
      if (value) list.append(element("dt", {}, name), element("dd", {}, value));
    }
    host.append(list);
    if (info.notes.length) {
      host.append(element("h3", {}, "Notes"), element("ul", {}, ...info.notes.map(note => element("li", {}, note))));
    }
  }
  const keys = [
    ["/", "search; /…/ is a regular expression"], ["1 – 6", "views"],
    ["← → ↑ ↓", "next frame, in the flame graph"], ["Enter", "zoom to the frame"], ["Esc", "whole width, all times"],
    ["+ −", "zoom; also Ctrl or Shift and the wheel"], ["c", "callers and callees of the frame; also a double click"],
  ];
  const list = element("dl");
  for (const [key, what] of keys) list.append(element("dt", {}, element("kbd", {}, key)), element("dd", {}, what));
  host.append(element("h3", {}, "Keys"), list);
}

class Page {
  constructor(model) {
    this.model = model;
    for (const recording of model.recordings) recording.compared = model.recordings.length > 1;
    this.state = new State(model);
    this.palette = new Palette(model);
    this.leavesFirst = false;
    summarize(this.state);
    document.querySelectorAll(".difference").forEach(part => { part.hidden = model.recordings.length < 2; });
    this.flame = new FlameView(byId("flame"), this.palette,
      "Flame graph. Arrow keys move between frames, Enter zooms, Escape shows all, c opens callers and callees.", {
        onFocus: frame => this.focused(frame),
        onOpen: frame => this.state.openSandwich(this.flame.graph.fn[frame]),
      });
    this.views = {
      flame: { update: () => this.drawFlame() },
      functions: new FunctionsView(byId("view-functions"), this.state),
      sandwich: new SandwichView(byId("view-sandwich"), this.state, this.palette),
      threads: new ThreadsView(byId("view-threads"), this.state),
      endings: new EndingsView(byId("view-endings"), this.state),
      about: { update: () => {} },
    };
    about(byId("view-about"), model);
    this.timeline = new Timeline(byId("time-rows"), model, {
      onTime: time => this.state.setFilter({ time }),
      onRow: row => this.onlyRow(row),
    });
    this.state.onChange = () => this.update();
    this.state.onSandwich = fn => {
      this.open("sandwich");
      this.views.sandwich.open(fn);
    };
    this.listen();
    const isEmpty = model.recordings.every(({ info }) => !info.samples);
    // There is nothing to draw, but perhaps a note that says why.
    if (isEmpty) for (const part of [byId("time"), document.querySelector("nav")]) part.style.display = "none";
    this.open(isEmpty ? "about" : "flame");
    if (isEmpty) performance.mark("first-picture");
  }

  addSamples() {
    this.state.isWhole = true;
    this.timeline.refill();
    // The filters that were chosen meanwhile.
    if (!passesAll(this.state.filter)) this.state.setFilter({});
  }

  // Views that are not shown are brought up to date when they are.
  open(name) {
    this.shown = name;
    for (const view of Object.keys(this.views)) {
      byId(`view-${view}`).hidden = view !== name;
      byId(`tab-${view}`).setAttribute("aria-selected", view === name);
      byId(`tab-${view}`).tabIndex = view === name ? 0 : -1;
    }
    this.views[name].update();
    // The flame graph has its size only once it is shown.
    if (name === "flame" && this.flame.resize()) this.flame.paint();
  }

  update() {
    this.showFilters();
    this.timeline.select(this.state.filter.time);
    this.views[this.shown].update();
  }

  drawFlame() {
    const { model, counts, basis } = this.state;
    this.chosen = -1;
    byId("open-sandwich").disabled = true;
    this.flame.found = this.state.found;
    this.flame.byCount = this.state.byCount;
    this.flame.show(this.leavesFirst ? leafGraph(model, counts, basis) : callGraph(model, counts, basis));
  }

  focused(frame) {
    byId("flame-detail").textContent = frame < 0 ? "" : this.state.describe(this.flame, frame);
    if (frame >= 0) this.chosen = frame;
    byId("open-sandwich").disabled = !(this.chosen > 0);
  }

  onlyRow(row) {
    const none = noFilter();
    if (row.all) return this.state.setFilter({ process: none.process, threads: none.threads, cpu: none.cpu });
    if (row.cpu !== undefined) return this.state.setFilter({ cpu: row.cpu });
    if (row.thread < 0) return this.open("threads");
    this.state.setFilter({ threads: new Set([threadKey(row.recording, row.thread)]) });
  }

  showFilters() {
    const { filter, counts, model } = this.state, none = noFilter(), parts = [];
    const add = (key, text) => parts.push(element("button", {
      type: "button", title: "Remove this filter", onclick: () => this.state.setFilter({ [key]: none[key] }),
    }, text));
    if (filter.time) add("time", `${filter.time[0].toFixed(3)} to ${filter.time[1].toFixed(3)} s`);
    if (filter.process !== null) add("process", `process ${filter.process}`);
    if (filter.threads) add("threads", `thread ${[...filter.threads][0].replace("\n", " › ")}`);
    if (filter.cpu !== null) add("cpu", `CPU ${filter.cpu}`);
    if (filter.ending !== null) add("ending", `stacks that end at ${model.endings[filter.ending].join(", read late: ")}`);
    const whole = count(model, noFilter()).reduce((sum, count) => sum + count.samples, 0);
    const passed = counts.reduce((sum, count) => sum + count.samples, 0);
    if (parts.length) parts.unshift(element("span", {}, `${isTime(model) ? inWords(model, passed) : passed} of ${inWords(model, whole)}, ${percent(passed, whole)} %:`));
    byId("filters").replaceChildren(...parts);
    byId("from").value = filter.time ? filter.time[0].toFixed(3) : "";
    byId("to").value = filter.time ? filter.time[1].toFixed(3) : "";
  }

  search(text) {
    const { state, model } = this;
    state.found = search(model, text);
    let said = "";
    if (state.found) {
      const samples = through(model, state.counts[0], state.found);
      said = `${percent(samples, state.counts[0].samples)} % of ${isTime(model) ? "the time" : unitOf(model)}`;
    }
    byId("matches").textContent = said;
    if (this.shown === "flame") {
      this.flame.found = state.found;
      this.flame.draw();
    } else {
      this.views[this.shown].update();
    }
  }

  listen() {
    const redraw = () => this.views[this.shown].update();
    choices({
      "by-thread": () => this.timeline.setByCpu(false),
      "by-cpu": () => this.timeline.setByCpu(true),
    }, "by-thread");
    const upwards = up => () => { this.flame.upwards = up; redraw(); };
    choices({ up: upwards(true), down: upwards(false) }, "up");
    const order = leavesFirst => () => { this.leavesFirst = leavesFirst; redraw(); };
    choices({ "callers-first": order(false), "leaves-first": order(true) }, "callers-first");
    const basis = index => () => { this.state.basis = index; redraw(); };
    choices({ "width-mine": basis(0), "width-other": basis(1) }, "width-mine");
    const by = byCount => () => { this.state.byCount = byCount; redraw(); };
    choices({ "by-share": by(false), "by-count": by(true) }, "by-share");
    byId("unzoom").addEventListener("click", () => this.flame.zoom(0, this.flame.graph.total));
    byId("open-sandwich").addEventListener("click", () => this.state.openSandwich(this.flame.graph.fn[this.chosen]));
    let waiting = 0;
    byId("search").addEventListener("input", event => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.search(event.target.value), 120);
    });
    for (const id of ["from", "to"]) byId(id).addEventListener("change", () => this.typedTime());
    const names = Object.keys(this.views);
    for (const name of names) byId(`tab-${name}`).addEventListener("click", () => this.open(name));
    document.querySelector("[role=tablist]").addEventListener("keydown", event => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      const name = names[(names.indexOf(this.shown) + by + names.length) % names.length];
      this.open(name);
      byId(`tab-${name}`).focus();
    });
    document.addEventListener("keydown", event => {
      if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") {
        event.preventDefault();
        byId("search").focus();
      } else if (event.key >= "1" && event.key <= "6") {
        this.open(names[event.key - 1]);
      }
    });
    this.palette.dark.addEventListener("change", () => {
      this.palette.read();
      this.timeline.build();
      redraw();
    });
  }

  typedTime() {
    const all = this.timeline.seconds;
    const value = (id, none) => byId(id).value === "" ? none : Number(byId(id).value);
    const from = Math.max(0, value("from", 0)), to = Math.min(all, value("to", all));
    this.state.setFilter({ time: from < to && (from > 0 || to < all) ? [from, to] : null });
  }
}

// The packed data in a part of the document, which need not be kept.
async function take(id) {
  const part = byId(id), packed = part.textContent;
  part.remove();
  return unpack(packed);
}

// After the next picture.
const painted = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));

async function start() {
  const parsed = new Promise(done => document.addEventListener("DOMContentLoaded", done));
  const model = decode(await take("data")), page = new Page(model);
  await Promise.all([parsed, painted()]);
  decodeSamples(model.recordings, await take("samples"));
  page.addSamples();
  performance.mark("all-samples");
}

start().catch(error => {
  byId("title").textContent = "This page cannot be shown";
  byId("summary").textContent = String(error);
});
