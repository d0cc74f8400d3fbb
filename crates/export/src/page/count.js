// Counts the samples that pass the filters.

// A filter that passes everything. `time` is in seconds since the first sample; `threads` are keys
// of threads, see threadKey.
function noFilter() {
  return { time: null, process: null, threads: null, cpu: null, ending: null };
}

const passesAll = filter => Object.values(filter).every(part => part === null);

// Threads of two recordings are compared by their names.
function threadKey(recording, thread) {
  const [process, tid, name] = recording.info.threads[thread];
  const [pid, processName] = recording.info.processes[process];
  return recording.compared ? `${processName}\n${name}` : `${pid} ${processName}\n${tid} ${name}`;
}

function count(model, filter) {
  return model.recordings.map(recording => countOne(model, recording, filter));
}

function countOne(model, recording, filter) {
  const { info, starts, time, leaf, cpus, weight, sums } = recording;
  if (passesAll(filter)) {
    const threads = Float64Array.from(info.threads, ([, , , samples, sum]) => sum ?? samples);
    return Object.assign(countNodes(model, sums), { threads });
  }
  // Weights may be times, whose sums need more than 32 bits.
  const leaves = new Float64Array(model.leafNode.length);
  const threads = new Float64Array(info.threads.length);
  let from = 0, to = Infinity;
  if (filter.time) {
    from = Math.floor(filter.time[0] / recording.step);
    to = Math.ceil(filter.time[1] / recording.step);
  }
  for (let thread = 0; thread < info.threads.length; thread++) {
    const process = info.processes[info.threads[thread][0]];
    if (filter.process !== null && process[1] !== filter.process) continue;
    if (filter.threads && !filter.threads.has(threadKey(recording, thread))) continue;
    let passed = 0;
    for (let i = starts[thread]; i < starts[thread + 1]; i++) {
      if (time[i] < from || time[i] > to) continue;
      if (filter.cpu !== null && cpus[i] !== filter.cpu) continue;
      if (filter.ending !== null && model.leafEnding[leaf[i]] !== filter.ending) continue;
      const counted = weight ? weight[i] : 1;
      leaves[leaf[i]] += counted;
      passed += counted;
    }
    threads[thread] = passed;
  }
  const counted = countNodes(model, leaves);
  counted.threads = threads;
  return counted;
}

function countNodes(model, leaves) {
  const { tree, leafNode, leafEnding } = model;
  const self = new Float64Array(tree.count);
  const endings = new Float64Array(model.endings.length);
  let samples = 0;
  for (let i = 0; i < leaves.length; i++) {
    self[leafNode[i]] += leaves[i];
    endings[leafEnding[i]] += leaves[i];
    samples += leaves[i];
  }
  const total = self.slice();
  for (let node = tree.count - 1; node > 0; node--) total[tree.parent[node]] += total[node];
  // The first picture needs no counts of functions.
  let functions = null;
  const byFunction = () => functions ??= countFunctions(model, self, total);
  return {
    samples, self, total, endings,
    get fnSelf() { return byFunction().fnSelf; },
    get fnTotal() { return byFunction().fnTotal; },
  };
}

function countFunctions({ tree, names, kinds }, self, total) {
  const fnSelf = new Float64Array(names.length), fnTotal = new Float64Array(names.length);
  // A function that calls itself counts once: at its outermost call.
  const open = new Int32Array(names.length).fill(-1);
  for (let node = 1; node < tree.count; node++) {
    const fn = tree.fn[node];
    if (kinds[fn] !== REMARK) fnSelf[fn] += self[node];
    if (node >= open[fn]) {
      fnTotal[fn] += total[node];
      open[fn] = tree.end[node];
    }
  }
  return { fnSelf, fnTotal };
}

// Functions whose names contain the text, or match /the expression/: by number.
function search(model, text) {
  const found = new Uint8Array(model.names.length);
  if (!text) return null;
  let matches = name => name.toLowerCase().includes(text.toLowerCase());
  const expression = /^\/(.+)\/$/.exec(text);
  if (expression) {
    try {
      const compiled = new RegExp(expression[1], "i");
      matches = name => compiled.test(name);
    } catch {
      return found;
    }
  }
  for (let fn = 0; fn < found.length; fn++) {
    if (matches(model.names[fn]) || matches(model.modules[model.moduleOf[fn]])) found[fn] = 1;
  }
  return found;
}

// Samples with at least one of the functions on their stack.
function through(model, counts, found) {
  const { tree } = model;
  let samples = 0;
  for (let node = 1; node < tree.count;) {
    if (found[tree.fn[node]]) {
      samples += counts.total[node];
      node = tree.end[node];
    } else {
      node++;
    }
  }
  return samples;
}

// As the table prints it. A number in the middle of two is rounded to the even one there, to the
// larger one by toFixed; only eighths are exactly in the middle.
function percent(part, whole) {
  const share = whole ? part * 100 / whole : 0, below = Math.floor(share * 100);
  return (share * 8 % 2 === 1 && below % 2 === 0 ? below / 100 : share).toFixed(2);
}
