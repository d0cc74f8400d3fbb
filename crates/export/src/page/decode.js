// From the packed data to typed arrays. All arrays are by number: of a function, of a node of the
// tree of calls, of a leaf (a node where stacks end, and how they end), of a sample.

const FUNCTION = 0, KERNEL = 1, REMARK = 2;

async function unpack(base64) {
  let bytes;
  if (Uint8Array.fromBase64) {
    bytes = Uint8Array.fromBase64(base64);
  } else {
    const text = atob(base64);
    bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// LEB128, read in order.
class Numbers {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  next() {
    let value = 0, scale = 1;
    for (;;) {
      const byte = this.bytes[this.at++];
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
      scale *= 128;
    }
  }

  signed() {
    const value = this.next();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }

  fill(array, next) {
    for (let i = 0; i < array.length; i++) array[i] = next();
    return array;
  }
}

function decode(bytes) {
  const numbers = new Numbers(bytes);
  const next = () => numbers.next();
  const length = numbers.next();
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(numbers.at, numbers.at + length)));
  numbers.at += length;
  const tree = decodeTree(numbers, header.nodes);
  let before = 0;
  const leafNode = numbers.fill(new Int32Array(header.leaves), () => before += numbers.signed());
  const leafEnding = numbers.fill(new Uint8Array(header.leaves), next);
  const recordings = header.recordings.map(info => {
    const starts = [0];
    for (const thread of info.threads) starts.push(starts.at(-1) + thread[3]);
    // What the samples of each leaf count for; weights may be times, which need more than 32 bits.
    const sums = numbers.fill(new Float64Array(header.leaves), next);
    return { info, starts, sums, seconds: info.duration / 1e9, step: info.step / 1e9 };
  });
  return {
    names: header.names,
    modules: header.modules,
    moduleOf: header.module_of,
    kinds: header.kinds,
    lines: header.lines,
    endings: header.endings,
    tree, leafNode, leafEnding, recordings,
  };
}

// The columns of samples, which recordings do not have before.
function decodeSamples(recordings, bytes) {
  const numbers = new Numbers(bytes);
  for (const recording of recordings) {
    const { info, starts } = recording, time = new Int32Array(info.samples);
    for (let thread = 0; thread < info.threads.length; thread++) {
      let now = 0;
      for (let i = starts[thread]; i < starts[thread + 1]; i++) time[i] = now += numbers.next();
    }
    const leaf = new Uint32Array(info.samples);
    for (let i = 0; i < leaf.length; i++) leaf[i] = bytes[numbers.at++];
    for (let i = 0; i < leaf.length; i++) leaf[i] += 256 * numbers.next();
    let cpu = 0;
    const cpus = numbers.fill(new Int32Array(info.samples), () => cpu += numbers.signed());
    const weight = info.unit && numbers.fill(new Float64Array(info.samples), () => numbers.next());
    Object.assign(recording, { time, leaf, cpus, weight });
  }
}

// Nodes come depth first: a node's descendants are the nodes until its `end`.
function decodeTree(numbers, count) {
  const parent = new Int32Array(count), depth = new Int32Array(count), end = new Int32Array(count);
  const path = [];
  for (let node = 0; node < count; node++) {
    const up = numbers.next();
    for (let i = 0; i < up; i++) end[path.pop()] = node;
    parent[node] = path.length ? path[path.length - 1] : 0;
    depth[node] = path.length;
    path.push(node);
  }
  for (const node of path) end[node] = count;
  const fn = numbers.fill(new Int32Array(count), () => numbers.next());
  return { count, parent, depth, end, fn };
}
