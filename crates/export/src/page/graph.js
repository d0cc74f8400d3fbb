// Trees as they are drawn: for each frame its function, its caller, its place and width (in
// samples), and its width in the other recording.

// Frames of a graph by level, each level from left to right.
function withLevels(graph) {
  const count = graph.fn.length;
  let deepest = 0;
  for (let i = 0; i < count; i++) deepest = Math.max(deepest, graph.depth[i]);
  const sizes = new Int32Array(deepest + 2);
  for (let i = 0; i < count; i++) if (graph.width[i] > 0) sizes[graph.depth[i]]++;
  while (deepest > 0 && !sizes[deepest]) deepest--;
  graph.levels = [];
  for (let depth = 0; depth <= deepest; depth++) graph.levels.push(new Int32Array(sizes[depth]));
  sizes.fill(0);
  for (let i = 0; i < count; i++) {
    const depth = graph.depth[i];
    if (graph.width[i] > 0) graph.levels[depth][sizes[depth]++] = i;
  }
  return graph;
}

// All stacks, callers first. `basis` is the recording whose counts are the widths.
function callGraph(model, counts, basis) {
  const { tree } = model;
  const width = counts[basis].total;
  const x = new Float64Array(tree.count), cursor = new Float64Array(tree.count);
  for (let node = 1; node < tree.count; node++) {
    const parent = tree.parent[node];
    x[node] = cursor[parent];
    cursor[parent] += width[node];
    cursor[node] = x[node];
  }
  return withLevels({
    fn: tree.fn, parent: tree.parent, depth: tree.depth, x, width,
    self: counts[basis].self,
    mine: counts[0].total, other: counts[1]?.total,
    samples: counts.map(count => count.samples), total: width[0],
  });
}

// Frames of a merged tree that are narrower than this share are not followed.
const NARROWEST = 1 / 5000;
const MOST_FRAMES = 200_000;

// Merges nodes by function, level by level: `seeds` are nodes, `next` passes the nodes that follow
// one to a function. A seed's counts go with it where callers are followed.
function mergedGraph(model, counts, basis, roots, follow) {
  const { tree } = model;
  const graph = { fn: [-1], parent: [0], depth: [0], x: [0], width: [0], mine: [0], other: [0] };
  const ofBasis = graph => basis ? graph.other : graph.mine;
  const add = (parent, fn, depth) => {
    graph.fn.push(fn);
    graph.parent.push(parent);
    graph.depth.push(depth);
    graph.x.push(0);
    graph.mine.push(0);
    graph.other.push(0);
    return graph.fn.length - 1;
  };
  // A group is a frame and the nodes merged in it: node, count here, count in the other recording.
  let level = [{ frame: 0, nodes: roots }];
  for (const item of roots) {
    graph.mine[0] += item[1];
    graph.other[0] += item[2];
  }
  const least = Math.max(ofBasis(graph)[0] * NARROWEST, 1);
  for (let depth = 1; level.length && graph.fn.length < MOST_FRAMES; depth++) {
    const following = [];
    for (const { frame, nodes } of level) {
      const groups = new Map();
      for (const item of nodes) {
        follow(item, depth, following => {
          const fn = tree.fn[following[0]];
          const group = groups.get(fn);
          if (group) group.push(following);
          else groups.set(fn, [following]);
        });
      }
      const children = [];
      for (const [fn, nodes] of groups) {
        const child = add(frame, fn, depth);
        for (const item of nodes) {
          graph.mine[child] += item[1];
          graph.other[child] += item[2];
        }
        children.push({ frame: child, nodes });
      }
      const widths = ofBasis(graph);
      children.sort((a, b) => widths[b.frame] - widths[a.frame] || graph.fn[a.frame] - graph.fn[b.frame]);
      let x = graph.x[frame];
      for (const child of children) {
        graph.x[child.frame] = x;
        x += widths[child.frame];
        if (widths[child.frame] >= least) following.push(child);
      }
    }
    level = following;
  }
  graph.width = ofBasis(graph);
  graph.x = Float64Array.from(graph.x);
  // Levels are filled in the order of frames, which follows their places only if sorted.
  withLevels(graph);
  for (const frames of graph.levels) frames.sort((a, b) => graph.x[a] - graph.x[b]);
  if (counts.length < 2) graph.other = undefined;
  graph.samples = counts.map(count => count.samples);
  graph.total = graph.width[0];
  return graph;
}

// The outermost calls of a function, with their counts.
function outermostCalls(model, counts, fn) {
  const { tree } = model, calls = [];
  for (let node = 1; node < tree.count;) {
    if (tree.fn[node] !== fn) {
      node++;
      continue;
    }
    const here = counts[0].total[node], other = counts[1] ? counts[1].total[node] : 0;
    if (here || other) calls.push([node, here, other]);
    node = tree.end[node];
  }
  return calls;
}

// The first level of a graph of callers or callees is the function itself.
function calleeGraph(model, counts, basis, fn) {
  const { tree } = model;
  const other = counts[1];
  return mergedGraph(model, counts, basis, outermostCalls(model, counts, fn), (item, depth, found) => {
    if (depth === 1) return found(item);
    for (let node = item[0] + 1; node < tree.end[item[0]]; node = tree.end[node]) {
      const here = counts[0].total[node], there = other ? other.total[node] : 0;
      if (here || there) found([node, here, there]);
    }
  });
}

function callerGraph(model, counts, basis, fn) {
  return mergedGraph(model, counts, basis, outermostCalls(model, counts, fn), followCallers(model));
}

// All stacks, leaves first.
function leafGraph(model, counts, basis) {
  const { tree } = model, roots = [];
  for (let node = 1; node < tree.count; node++) {
    const here = counts[0].self[node], other = counts[1] ? counts[1].self[node] : 0;
    if (here || other) roots.push([node, here, other]);
  }
  return mergedGraph(model, counts, basis, roots, followCallers(model));
}

function followCallers(model) {
  const { tree } = model;
  return (item, depth, found) => {
    if (depth === 1) return found(item);
    const parent = tree.parent[item[0]];
    if (parent) found([parent, item[1], item[2]]);
  };
}
