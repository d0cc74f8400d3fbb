// The samples over time: a row for all, and one for each thread or CPU.

const TIME_ROW = 18, ALL_ROW = 40, AXIS = 18, MOST_ROWS = 300;

class Timeline {
  constructor(host, model, { onTime, onRow }) {
    this.model = model;
    this.onTime = onTime;
    this.onRow = onRow;
    this.byCpu = false;
    this.selected = null;
    this.seconds = Math.max(...model.recordings.map(recording => recording.seconds), 1e-9);
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label",
      "Samples over time. Arrow keys move the selected time, with Shift they change its end, Escape selects all.");
    const scroller = document.createElement("div");
    scroller.className = "scroller";
    scroller.append(this.canvas);
    host.append(scroller);
    this.base = document.createElement("canvas");
    this.context = this.canvas.getContext("2d", { alpha: false });
    new ResizeObserver(() => this.build()).observe(scroller);
    this.scroller = scroller;
    this.rows = this.makeRows();
    this.listen();
  }

  setByCpu(byCpu) {
    this.byCpu = byCpu;
    this.refill();
  }

  refill() {
    this.rows = this.makeRows();
    this.build();
  }

  // Rows with the ranges or the CPU of their samples.
  makeRows() {
    const rows = [];
    this.model.recordings.forEach((recording, index) => {
      const { info, starts, cpus = [] } = recording, compared = this.model.recordings.length > 1;
      rows.push({ recording, label: compared ? (index ? "other recording" : "this recording") : "all", all: true });
      if (this.byCpu) {
        const known = new Set();
        for (let i = 0; i < cpus.length; i++) if (!i || cpus[i] !== cpus[i - 1]) known.add(cpus[i]);
        const inOrder = [...known].sort((a, b) => a - b);
        for (const cpu of inOrder.slice(0, MOST_ROWS)) rows.push({ recording, label: `CPU ${cpu}`, cpu });
        return;
      }
      const threads = info.threads.map((_, thread) => thread);
      threads.sort((a, b) => info.threads[b][3] - info.threads[a][3]);
      for (const thread of threads.slice(0, MOST_ROWS)) {
        const [process, tid, name] = info.threads[thread];
        const [pid, processName] = info.processes[process];
        const label = tid === pid ? `${processName} ${pid}` : `${processName} › ${name} ${tid}`;
        rows.push({ recording, label, thread, from: starts[thread], to: starts[thread + 1] });
      }
      const left = threads.length - MOST_ROWS;
      if (left > 0) rows.push({ recording, label: `${left} more: see Threads`, from: 0, to: 0, thread: -1 });
    });
    return rows;
  }

  get labels() { return Math.min(210, Math.round(this.scroller.clientWidth * 0.28)); }

  // Fills each row's samples by column.
  fillBins(columns) {
    const cpuRows = new Map();
    for (const row of this.rows) {
      row.bins = new Float64Array(columns);
      if (row.cpu !== undefined) cpuRows.set(`${this.model.recordings.indexOf(row.recording)} ${row.cpu}`, row);
    }
    this.model.recordings.forEach((recording, index) => {
      const { time, cpus, weight, info } = recording;
      // The samples come after the first picture.
      if (!time) return;
      const scale = recording.step / this.seconds * columns;
      // Columns of a microsecond, if weights are times, and else of a sample's period, if a clock
      // took it: both end at their time. Spread over them, busy threads have no gaps.
      const ofMicrosecond = info.unit?.[1] ? columns / (this.seconds * 1e6) : 0;
      const ofPeriod = !info.unit && info.frequency ? columns / (this.seconds * info.frequency) : 0;
      const fill = (bins, i) => {
        const amount = weight ? weight[i] : 1, width = weight ? amount * ofMicrosecond : ofPeriod;
        const end = Math.min(columns, time[i] * scale), start = Math.max(0, end - width);
        const first = Math.min(columns - 1, Math.floor(start)), last = Math.min(columns - 1, Math.floor(end));
        if (first === last) {
          // What began before the recording counts as far as it is in it.
          bins[last] += width > 0 ? amount * (end - start) / width : amount;
          return;
        }
        const share = amount / width;
        bins[first] += share * (first + 1 - start);
        for (let at = first + 1; at < last; at++) bins[at] += share;
        bins[last] += share * (end - last);
      };
      let row, cpu = -1;
      for (let i = 0; this.byCpu && i < time.length; i++) {
        if (cpus[i] !== cpu) row = cpuRows.get(`${index} ${cpu = cpus[i]}`);
        if (row) fill(row.bins, i);
      }
      for (const row of this.rows) {
        if (row.recording !== recording || row.cpu !== undefined) continue;
        for (let i = row.all ? 0 : row.from; i < (row.all ? time.length : row.to); i++) fill(row.bins, i);
      }
    });
  }

  build() {
    const width = this.scroller.clientWidth, scale = devicePixelRatio || 1;
    if (width < 50) return;
    let height = AXIS;
    for (const row of this.rows) {
      row.top = height;
      row.height = row.all ? ALL_ROW : TIME_ROW;
      height += row.height;
    }
    for (const canvas of [this.base, this.canvas]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    this.canvas.style.height = `${height}px`;
    this.paintBase(width, height, scale);
    this.paint();
  }

  paintBase(width, height, scale) {
    const context = this.base.getContext("2d", { alpha: false });
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(name).trim();
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = colour("--panel");
    context.fillRect(0, 0, width, height);
    const left = this.labels, columns = Math.max(1, Math.floor(width - left));
    context.font = '11px system-ui, "DejaVu Sans", sans-serif';
    context.textBaseline = "middle";
    context.direction = "ltr";
    this.paintAxis(context, left, columns, height, colour);
    this.fillBins(columns);
    for (const row of this.rows) {
      const { bins } = row, most = bins.reduce((a, b) => Math.max(a, b), 0) || 1;
      context.fillStyle = colour("--line");
      context.fillRect(0, row.top + row.height - 1, width, 1);
      context.fillStyle = colour("--accent");
      for (let i = 0; i < columns; i++) {
        if (!bins[i]) continue;
        const tall = Math.max(2, bins[i] / most * (row.height - 4));
        context.fillRect(left + i, row.top + row.height - 1 - tall, 1, tall);
      }
      context.fillStyle = colour(row.all ? "--text" : "--quiet");
      context.fillText(fitted(context, row.label, left - 10), 6, row.top + row.height / 2);
    }
  }

  paintAxis(context, left, columns, height, colour) {
    const steps = columns / 90, rough = this.seconds / steps, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(by => by * power).find(by => by >= rough) || rough;
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    for (let at = 0; at <= this.seconds; at += step) {
      const x = left + at / this.seconds * columns;
      context.fillStyle = colour("--line");
      context.fillRect(x, AXIS - 4, 1, height);
      context.fillStyle = colour("--quiet");
      const text = `${at.toFixed(Math.min(digits, 9))} s`;
      if (x + context.measureText(text).width + 4 < left + columns) context.fillText(text, x + 3, AXIS / 2);
    }
  }

  paint() {
    const { context, selected } = this, scale = devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.base, 0, 0);
    if (!selected) return;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const left = this.labels, wide = this.canvas.clientWidth - left, height = this.canvas.clientHeight;
    const from = left + selected[0] / this.seconds * wide, to = left + selected[1] / this.seconds * wide;
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    context.fillStyle = dark ? "#16171acc" : "#fbfbf9cc";
    context.fillRect(left, AXIS, from - left, height);
    context.fillRect(to, AXIS, left + wide - to, height);
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
    context.fillRect(from - 1, 0, 2, height);
    context.fillRect(to - 1, 0, 2, height);
  }

  // Sets the selected time without telling anyone.
  select(selected) {
    this.selected = selected;
    this.paint();
  }

  timeAt(x) {
    const left = this.labels, part = (x - left) / (this.canvas.clientWidth - left);
    return Math.max(0, Math.min(1, part)) * this.seconds;
  }

  listen() {
    const { canvas } = this;
    let start = null;
    canvas.addEventListener("pointerdown", event => {
      if (event.button !== 0 || event.offsetX < this.labels) return;
      start = this.timeAt(event.offsetX);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      canvas.style.cursor = event.offsetX < this.labels ? "pointer" : "crosshair";
      if (start === null) return;
      const now = this.timeAt(event.offsetX);
      this.select([Math.min(start, now), Math.max(start, now)]);
    });
    canvas.addEventListener("pointerup", event => {
      if (start === null) return;
      start = null;
      const [from, to] = this.selected || [0, 0];
      const least = this.seconds * 3 / canvas.clientWidth;
      this.onTime(to - from < least ? null : [from, to]);
    });
    canvas.addEventListener("click", event => {
      if (event.offsetX >= this.labels) return;
      const row = this.rows.find(row => event.offsetY >= row.top && event.offsetY < row.top + row.height);
      if (row) this.onRow(row);
    });
    canvas.addEventListener("keydown", event => {
      const by = this.seconds / 50 * { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") return this.onTime(null);
      if (!by) return;
      event.preventDefault();
      const [from, to] = this.selected || [0, this.seconds / 10];
      const end = Math.min(this.seconds, Math.max(from, to + by));
      const moved = [Math.max(0, Math.min(from + by, this.seconds - (to - from))), 0];
      this.onTime(event.shiftKey ? [from, end] : [moved[0], moved[0] + to - from]);
    });
  }
}

// The text, shortened in its middle until it fits.
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let low = 1, high = text.length;
  const cut = letters => {
    const end = Math.floor(letters * 0.45);
    return `${text.slice(0, letters - end)}…${text.slice(text.length - end)}`;
  };
  while (low < high) {
    const middle = low + high + 1 >> 1;
    if (context.measureText(cut(middle)).width <= room) low = middle;
    else high = middle - 1;
  }
  return cut(low);
}
