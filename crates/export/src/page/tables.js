// Tables of HTML. Names only ever become text, never markup.

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// A column: its heading, how a row is shown, and by what it is sorted. `cell` may be a node.
function column(heading, cell, { number = false, by = null, kind = "", changed = null } = {}) {
  return { heading, cell, number, by, kind, changed };
}

const ROWS_AT_ONCE = 200;

// A table that is sorted by its headings and shows more rows on request.
class Table {
  constructor(caption, columns, { sorted = 0, limit = ROWS_AT_ONCE } = {}) {
    this.columns = columns;
    this.sorted = sorted;
    this.descending = columns[sorted]?.number ?? false;
    this.limit = this.pace = limit;
    this.caption = element("caption", {}, caption);
    this.headings = columns.map((column, index) => {
      const label = column.by ? element("button", { type: "button", onclick: () => this.sortBy(index) }, column.heading)
        : column.heading;
      return element("th", { scope: "col", className: `${column.number ? "number" : ""} ${column.kind}`.trim() }, label);
    });
    this.body = element("tbody");
    this.more = element("button", { type: "button", onclick: () => { this.limit += 5 * this.pace; this.show(); } });
    const table = element("table", {}, this.caption, element("thead", {}, element("tr", {}, ...this.headings)), this.body);
    this.element = element("div", { className: "scroll" }, table, this.more);
    this.rows = [];
    this.mark = null;
  }

  sortBy(index) {
    this.descending = index === this.sorted ? !this.descending : this.columns[index].number;
    this.sorted = index;
    this.show();
  }

  set(rows, mark = null) {
    this.rows = rows;
    this.mark = mark;
    this.limit = this.pace;
    this.show();
  }

  show() {
    const { by } = this.columns[this.sorted], sign = this.descending ? -1 : 1;
    const compare = (a, b) => {
      const [x, y] = [by(a), by(b)];
      return Array.isArray(x) ? x[0] - y[0] || x[1] - y[1] : x < y ? -1 : x > y ? 1 : 0;
    };
    if (by) this.rows.sort((a, b) => sign * compare(a, b));
    this.headings.forEach((heading, index) => {
      if (index === this.sorted && by) heading.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
    this.body.replaceChildren(...this.rows.slice(0, this.limit).map(row => this.row(row)));
    const left = this.rows.length - this.limit;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show more; ${left} rows are left`;
  }

  row(row) {
    const cells = this.columns.map(column => {
      const changed = column.changed?.(row) ?? 0;
      const kinds = [column.number ? "number" : "", column.kind, changed > 0 ? "more" : changed < 0 ? "less" : ""];
      return element("td", { className: kinds.filter(Boolean).join(" ") }, column.cell(row));
    });
    return element("tr", this.mark?.(row) ? { className: "match" } : {}, ...cells);
  }
}

function signed(number, digits) {
  const text = digits === undefined ? String(number) : number.toFixed(digits);
  return number > 0 ? `+${text}` : text.replace("-", "−");
}

// Times are in milliseconds.
const shown = (model, amount) => isTime(model) ? (amount / 1000).toFixed(3) : String(amount);
const signedAmount = (model, amount) => isTime(model) ? signed(amount / 1000, 3) : signed(amount);
const heading = (model, what) => isTime(model) ? `${what === "samples" ? "time" : what} ms` : what;

// Columns about a function: `row.fn`, with counts of the whole.
function countColumns(state, what, of) {
  const whole = index => state.counts[index].samples;
  const columns = [
    column(`${what} %`, row => percent(of(row, 0), whole(0)), { number: true, by: row => [of(row, 0), row.total ?? 0] }),
    column(heading(state.model, what), row => shown(state.model, of(row, 0)), { number: true, by: row => of(row, 0) }),
  ];
  if (state.model.recordings.length > 1) {
    const share = row => of(row, 0) * 100 / (whole(0) || 1) - of(row, 1) * 100 / (whole(1) || 1);
    const more = row => of(row, 0) - of(row, 1);
    columns.push(
      column("± points", row => signed(share(row), 2), { number: true, by: share, changed: share }),
      column(isTime(state.model) ? "± ms" : "± samples", row => signedAmount(state.model, more(row)),
        { number: true, by: more, changed: more }),
    );
  }
  return columns;
}

function functionColumns(state) {
  const { model } = state;
  return [
    column("function", row => element("button", {
      type: "button", title: model.names[row.fn], onclick: () => state.openSandwich(row.fn),
    }, model.names[row.fn]), { kind: "name", by: row => model.names[row.fn] }),
    column("module", row => model.modules[model.moduleOf[row.fn]], {
      kind: "module", by: row => model.modules[model.moduleOf[row.fn]],
    }),
  ];
}

class FunctionsView {
  constructor(host, state) {
    this.state = state;
    const { model } = state;
    const columns = [
      ...countColumns(state, "self", (row, index) => state.counts[index].fnSelf[row.fn]),
      ...countColumns(state, "total", (row, index) => state.counts[index].fnTotal[row.fn]),
      ...functionColumns(state),
    ];
    // Two recordings need the room for their differences.
    if (model.recordings.length === 1) {
      columns.push(column("line with most", row => model.lines[row.fn] ?? "", { kind: "line" }));
    }
    this.table = new Table("", columns);
    host.append(this.table.element);
  }

  update() {
    const { model, counts, found } = this.state, rows = [];
    for (let fn = 0; fn < model.names.length; fn++) {
      if (model.kinds[fn] === REMARK || found && !found[fn]) continue;
      if (counts.some(count => count.fnTotal[fn])) rows.push({ fn, total: counts[0].fnTotal[fn] });
    }
    const functions = rows.length === 1 ? "1 function" : `${rows.length} functions`;
    this.table.caption.textContent = `${functions}. Self: samples in the function itself; total: with what it ` +
      "calls. Choose a name to see its callers and callees";
    this.table.set(rows);
  }
}

const REASONS = {
  end_of_stack: "The outermost frame was reached: the stack is complete.",
  no_module: "An address lies in no mapped file.",
  no_table: "A module has no unwind table for an address.",
  unreadable: "A word of the stack could not be read.",
  did_not_advance: "The caller's stack pointer is not above the frame's.",
  not_expressible: "A rule needs a register whose value is unknown.",
  limit: "More frames than the limit.",
  no_user_stack: "There was no user stack: a kernel thread, or a process that was ending.",
  beyond_copy: "The caller's frame lies beyond the copied part of the stack.",
  no_call: "The presumed return address does not follow a call.",
  no_start: "A chain of frame pointers ends in code that is not known to start a stack.",
  stack_lost: "The stack's definition was lost; only its leaf is known.",
};

class EndingsView {
  constructor(host, state) {
    this.state = state;
    const { model } = state;
    const of = (row, index) => state.counts[index].endings[row.ending];
    const columns = [
      ...countColumns(state, isTime(model) ? "time" : "samples", of),
      column("stacks end at", row => model.endings[row.ending][0], { kind: "module", by: row => row.ending }),
      column("read", row => model.endings[row.ending][1] ? "late" : "at the sample"),
      column("meaning", row => REASONS[model.endings[row.ending][0]] ?? ""),
      column("", row => element("button", {
        type: "button", onclick: () => state.setFilter({ ending: row.ending }),
      }, "Only these"), { kind: "action" }),
    ];
    this.table = new Table("Why stacks end. Read late: outer frames were read from the running process after the sample",
      columns);
    host.append(this.table.element);
  }

  update() {
    const { model, counts } = this.state;
    const rows = model.endings.map((_, ending) => ({ ending }));
    this.table.set(rows.filter(row => counts.some(count => count.endings[row.ending])));
  }
}

class ThreadsView {
  constructor(host, state) {
    this.state = state;
    const { model } = state, compared = model.recordings.length > 1;
    const number = (heading, value) => column(heading, row => String(value(row)), { number: true, by: value });
    const name = (heading, value, only) => column(heading, row => element("button", {
      type: "button", title: "Only this", onclick: () => only(row),
    }, value(row)), { kind: "name", by: value });
    const columns = [
      column(isTime(model) ? "time %" : "samples %", row => percent(row.samples, row.whole),
        { number: true, by: row => row.samples }),
      column(heading(model, "samples"), row => shown(model, row.samples), { number: true, by: row => row.samples }),
      name("process", row => row.processName, row => state.setFilter({ process: row.processName })),
      number("pid", row => row.pid),
      name("thread", row => row.name, row => state.setFilter({ threads: new Set([row.key]) })),
      number("tid", row => row.tid),
    ];
    if (compared) columns.splice(2, 0, column("recording", row => row.index ? "other" : "this", { by: row => row.index }));
    this.table = new Table("", columns);
    host.append(this.table.element);
  }

  update() {
    const { model, counts } = this.state, rows = [];
    model.recordings.forEach((recording, index) => {
      recording.info.threads.forEach(([process, tid, name], thread) => {
        const samples = counts[index].threads[thread], [pid, processName] = recording.info.processes[process];
        if (!samples) return;
        const key = threadKey(recording, thread);
        rows.push({ samples, whole: counts[index].samples, pid, processName, tid, name, key, index });
      });
    });
    const threads = rows.length === 1 ? "1 thread" : `${rows.length} threads`;
    this.table.caption.textContent = `${threads} with samples; choose a name to see only that process or thread`;
    this.table.set(rows);
  }
}
