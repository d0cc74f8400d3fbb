// Draws a graph into a canvas: whole rows are filled as pixels, so the time for a picture depends
// on the size of the canvas and not on the number of stacks.

const ROW = 18;
const FONT = '12px ui-monospace, "DejaVu Sans Mono", monospace';
const NARROWEST_TEXT = 28;

function hslToPixel(hue, saturation, lightness) {
  const channel = n => {
    const k = (n + hue / 30) % 12;
    const a = saturation * Math.min(lightness, 1 - lightness);
    return Math.round(255 * (lightness - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  // Pixels are stored as red, green, blue, alpha; read as one number, red is lowest.
  return (255 << 24 | channel(4) << 16 | channel(8) << 8 | channel(0)) >>> 0;
}

function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return value >>> 0;
}

// Colours by theme. A module has a hue, a function a shade of it; the kernel is orange, remarks and
// processes are grey.
class Palette {
  constructor(model) {
    this.model = model;
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.read();
  }

  read() {
    const { model } = this, dark = this.dark.matches;
    const base = dark ? 0.33 : 0.76, shades = dark ? 0.06 : 0.09, strength = dark ? 0.34 : 0.62;
    this.functions = Uint32Array.from(model.names, (name, fn) => {
      const shade = (hash(name) % 16 / 15 - 0.5) * 2 * shades;
      if (model.kinds[fn] === REMARK) return hslToPixel(220, 0.05, (dark ? 0.27 : 0.83) + shade / 3);
      if (model.kinds[fn] === KERNEL) return hslToPixel(28, dark ? 0.5 : 0.88, base - (dark ? 0.02 : 0.04) + shade);
      // No module has a hue near the kernel's.
      const hue = (50 + hash(model.modules[model.moduleOf[fn]]) % 300) % 360;
      return hslToPixel(hue, strength, base + shade);
    });
    this.found = hslToPixel(300, dark ? 0.6 : 0.75, dark ? 0.42 : 0.72);
    this.back = dark ? 0xff24201e : 0xffffffff;
    this.text = dark ? "#f1f2f4" : "#17181b";
    this.outline = dark ? "#ffffff" : "#000000";
    // From much less to much more than in the other recording.
    this.differences = Uint32Array.from({ length: 65 }, (_, i) => {
      const by = (i - 32) / 32, much = Math.abs(by) ** 0.7;
      const hue = by > 0 ? 6 : 215;
      return hslToPixel(hue, much * (dark ? 0.62 : 0.85), dark ? 0.27 + much * 0.13 : 0.88 - much * 0.22);
    });
  }
}

// The index of the first frame of a level that ends after `x`.
function firstAfter(graph, level, x) {
  let low = 0, high = level.length;
  while (low < high) {
    const middle = low + high >> 1, frame = level[middle];
    if (graph.x[frame] + graph.width[frame] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

class FlameView {
  constructor(host, palette, label, { onFocus = () => {}, onOpen = () => {} }) {
    this.palette = palette;
    this.onFocus = onFocus;
    this.onOpen = onOpen;
    this.graph = null;
    this.found = null;
    this.upwards = true;
    this.byCount = false;
    this.view = [0, 1];
    this.focus = -1;
    this.scroller = document.createElement("div");
    this.scroller.className = "canvas-scroller";
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", label);
    this.spacer = document.createElement("div");
    this.scroller.append(this.canvas, this.spacer);
    host.append(this.scroller);
    this.context = this.canvas.getContext("2d", { alpha: false });
    // Another size clears the canvas: painted with the next picture, it would be black in this one.
    new ResizeObserver(() => this.resize() ? this.paint() : this.draw()).observe(this.scroller);
    this.scroller.addEventListener("scroll", () => this.draw());
    this.listen();
  }

  show(graph, { keepView = false } = {}) {
    this.graph = graph;
    if (!keepView) this.view = [0, graph.total];
    this.focus = -1;
    this.resize();
    this.scroller.scrollTop = this.upwards ? this.scroller.scrollHeight : 0;
    this.draw();
  }

  get height() { return this.scroller.clientHeight; }

  // Whether the canvas has another size now, and must be painted.
  resize() {
    const scale = devicePixelRatio || 1;
    const width = Math.max(1, Math.round(this.scroller.clientWidth * scale));
    const height = Math.max(1, Math.round(this.height * scale));
    if (!this.graph || this.height < 2) return false;
    this.spacer.style.height = `${Math.max(0, this.graph.levels.length * ROW - this.height)}px`;
    if (this.canvas.width === width && this.canvas.height === height) return false;
    this.canvas.width = width;
    this.canvas.height = height;
    this.canvas.style.height = `${this.height}px`;
    this.image = this.context.createImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.line = new Uint32Array(width);
    this.context.font = FONT;
    this.letter = this.context.measureText("m").width;
    return true;
  }

  // The top of a level in the canvas, in pixels of the page. Few levels start at their own edge.
  top(depth) {
    const levels = this.graph.levels.length;
    if (!this.upwards) return depth * ROW - this.scroller.scrollTop;
    const all = Math.max(levels * ROW, this.height);
    return all - (depth + 1) * ROW - this.scroller.scrollTop;
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.paint();
    });
  }

  paint() {
    const { graph, pixels, line, palette, canvas } = this;
    if (!graph || !pixels) return;
    const scale = devicePixelRatio || 1, width = canvas.width;
    const [from, to] = this.view, perPixel = (to - from || 1) / width;
    pixels.fill(palette.back);
    const texts = [];
    for (let depth = 0; depth < graph.levels.length; depth++) {
      const top = this.top(depth);
      if (top <= -ROW || top >= this.height) continue;
      this.paintLevel(depth, from, perPixel, top, texts);
      const first = Math.max(0, Math.round(top * scale)), last = Math.min(canvas.height, Math.round((top + ROW - 1) * scale));
      for (let y = first; y < last; y++) pixels.set(line, y * width);
    }
    this.context.putImageData(this.image, 0, 0);
    this.paintTexts(texts, scale);
    this.paintFocus(scale);
    if (!FlameView.painted) {
      FlameView.painted = true;
      performance.mark("first-picture");
    }
  }

  paintLevel(depth, from, perPixel, top, texts) {
    const { graph, line, palette } = this, level = graph.levels[depth], width = line.length;
    line.fill(palette.back);
    let index = firstAfter(graph, level, from);
    while (index < level.length) {
      const frame = level[index];
      const start = Math.max(0, Math.round((graph.x[frame] - from) / perPixel));
      if (start >= width) break;
      const end = Math.min(width, Math.round((graph.x[frame] + graph.width[frame] - from) / perPixel));
      const colour = this.colour(frame);
      if (end - start <= 1) {
        line[start] = colour;
        // Of frames within one pixel only the first is drawn.
        const next = firstAfter(graph, level, from + (start + 1) * perPixel);
        index = Math.max(index + 1, next);
        continue;
      }
      line.fill(colour, start, end);
      // A gap between neighbours, where it does not hide them.
      if (end - start > 3) line[end - 1] = palette.back;
      if (end - start > NARROWEST_TEXT * (devicePixelRatio || 1)) texts.push(frame, start, end, top);
      index++;
    }
  }

  colour(frame) {
    const { graph, palette, found } = this, fn = graph.fn[frame];
    // The first frame is all samples.
    if (frame === 0) return palette.differences[32];
    if (found && found[fn]) return palette.found;
    return graph.other ? palette.differences[this.difference(frame)] : palette.functions[fn];
  }

  // The step of the scale of differences, 0 to 64. Shares are compared with each other, so that a
  // longer recording is not more of everything; a twentieth of all samples is much.
  difference(frame) {
    const { graph } = this, [mine, other] = graph.samples;
    const by = this.byCount
      ? (graph.mine[frame] - graph.other[frame]) / Math.max(mine, other, 1)
      : graph.mine[frame] / (mine || 1) - graph.other[frame] / (other || 1);
    return Math.round(Math.max(-1, Math.min(1, by * 20)) * 32) + 32;
  }

  paintTexts(texts, scale) {
    const { context, graph, palette } = this;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = FONT;
    context.fillStyle = palette.text;
    context.textBaseline = "middle";
    context.direction = "ltr";
    for (let i = 0; i < texts.length; i += 4) {
      const name = this.name(texts[i]), start = texts[i + 1] / scale, room = texts[i + 2] / scale - start - 8;
      const letters = Math.floor(room / this.letter);
      if (letters < Math.min(4, name.length)) continue;
      const text = name.length <= letters ? name : `${name.slice(0, letters - 1)}…`;
      // Letters of other scripts may be wider.
      context.fillText(text, start + 4, texts[i + 3] + ROW / 2, room + 4);
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  paintFocus(scale) {
    const { graph, focus, context } = this;
    if (focus < 0) return;
    const [from, to] = this.view, perPixel = (to - from || 1) / this.canvas.width;
    const start = Math.max(0, (graph.x[focus] - from) / perPixel);
    const end = Math.min(this.canvas.width, (graph.x[focus] + graph.width[focus] - from) / perPixel);
    context.strokeStyle = this.palette.outline;
    context.lineWidth = 2 * scale;
    context.strokeRect(start + scale, this.top(graph.depth[focus]) * scale + scale, Math.max(end - start - 2 * scale, 1),
      (ROW - 1) * scale - 2 * scale);
  }

  name(frame) {
    return frame === 0 ? (isTime(this.palette.model) ? "all time" : "all samples") : this.palette.model.names[this.graph.fn[frame]];
  }

  // The frame at a place of the canvas, -1 if there is none.
  at(x, y) {
    const { graph } = this;
    if (!graph) return -1;
    const all = Math.max(graph.levels.length * ROW, this.height);
    const down = y + this.scroller.scrollTop;
    const depth = Math.floor((this.upwards ? all - down : down) / ROW);
    const level = graph.levels[depth];
    if (!level) return -1;
    const [from, to] = this.view, perPixel = (to - from) / this.canvas.clientWidth;
    const place = from + x * perPixel, frame = level[firstAfter(graph, level, place)];
    return frame !== undefined && graph.x[frame] <= place + perPixel ? frame : -1;
  }

  setFocus(frame) {
    this.focus = frame;
    if (frame >= 0) this.reveal(frame);
    this.onFocus(frame);
    this.draw();
  }

  // Scrolls so that the frame's level is visible.
  reveal(frame) {
    const top = this.top(this.graph.depth[frame]);
    if (top < 0) this.scroller.scrollTop += top;
    else if (top > this.height - ROW) this.scroller.scrollTop += top - this.height + ROW;
  }

  zoom(from, to) {
    const { graph } = this;
    const least = graph.total / 1e6, wide = Math.min(Math.max(to - from, least), graph.total);
    from = Math.max(0, Math.min(from, graph.total - wide));
    const [oldFrom, oldTo] = this.view, target = [from, from + wide];
    cancelAnimationFrame(this.moving);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.view = target;
      return this.draw();
    }
    const began = performance.now();
    const step = now => {
      const part = Math.min(1, Math.max(0, (now - began) / 200)), eased = 1 - (1 - part) ** 3;
      this.view = [oldFrom + (target[0] - oldFrom) * eased, oldTo + (target[1] - oldTo) * eased];
      this.paint();
      if (part < 1) this.moving = requestAnimationFrame(step);
    };
    this.moving = requestAnimationFrame(step);
  }

  zoomTo(frame) {
    this.zoom(this.graph.x[frame], this.graph.x[frame] + this.graph.width[frame]);
  }

  // At once: the hand that turns the wheel is the animation.
  zoomAround(x, factor) {
    const [from, to] = this.view, place = from + (to - from) * x / this.canvas.clientWidth;
    const wide = Math.min(Math.max((to - from) * factor, this.graph.total / 1e6), this.graph.total);
    const start = Math.max(0, Math.min(place - (place - from) * wide / (to - from), this.graph.total - wide));
    cancelAnimationFrame(this.moving);
    this.view = [start, start + wide];
    this.draw();
  }

  listen() {
    const { canvas } = this;
    let drag = null;
    canvas.addEventListener("pointerdown", event => {
      if (event.button === 0) drag = { x: event.clientX, view: this.view, moved: false };
    });
    canvas.addEventListener("pointermove", event => {
      if (drag && event.buttons & 1) {
        const by = (event.clientX - drag.x) * (drag.view[1] - drag.view[0]) / canvas.clientWidth;
        if (Math.abs(event.clientX - drag.x) > 3 && !drag.moved) {
          drag.moved = true;
          canvas.setPointerCapture(event.pointerId);
        }
        if (!drag.moved) return;
        const wide = drag.view[1] - drag.view[0];
        const from = Math.max(0, Math.min(drag.view[0] - by, this.graph.total - wide));
        this.view = [from, from + wide];
        return this.draw();
      }
      const frame = this.at(event.offsetX, event.offsetY);
      canvas.style.cursor = frame >= 0 ? "pointer" : "default";
      if (frame !== this.focus) {
        this.focus = frame;
        this.onFocus(frame);
        this.draw();
      }
    });
    canvas.addEventListener("click", event => {
      const moved = drag?.moved;
      drag = null;
      const frame = this.at(event.offsetX, event.offsetY);
      if (moved || frame < 0) return;
      this.setFocus(frame);
      this.zoomTo(frame);
    });
    canvas.addEventListener("dblclick", event => {
      const frame = this.at(event.offsetX, event.offsetY);
      if (frame > 0) this.onOpen(frame);
    });
    canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      this.zoomAround(event.offsetX, 1.0015 ** (event.deltaY || event.deltaX));
    }, { passive: false });
    canvas.addEventListener("keydown", event => {
      if (this.key(event)) event.preventDefault();
    });
    canvas.addEventListener("focus", () => {
      if (this.focus < 0 && this.graph) this.setFocus(0);
    });
  }

  key(event) {
    const { graph } = this;
    if (!graph || event.ctrlKey || event.metaKey || event.altKey) return false;
    const at = Math.max(this.focus, 0), level = graph.levels[graph.depth[at]];
    const neighbour = by => level[level.indexOf(at) + by];
    const inwards = this.upwards ? "ArrowUp" : "ArrowDown", outwards = this.upwards ? "ArrowDown" : "ArrowUp";
    let to;
    switch (event.key) {
      case inwards: to = this.widestChild(at); break;
      case outwards: to = at === 0 ? undefined : graph.parent[at]; break;
      case "ArrowLeft": to = neighbour(-1); break;
      case "ArrowRight": to = neighbour(1); break;
      case "Home": to = 0; break;
      case "Enter": case " ": this.zoomTo(at); return true;
      case "c": if (at > 0) this.onOpen(at); return true;
      case "Escape": case "0": this.zoom(0, graph.total); return true;
      case "+": case "=": this.zoomAround(this.canvas.clientWidth / 2, 0.7); return true;
      case "-": this.zoomAround(this.canvas.clientWidth / 2, 1 / 0.7); return true;
      default: return false;
    }
    if (to !== undefined) this.setFocus(to);
    return true;
  }

  widestChild(frame) {
    const { graph } = this, level = graph.levels[graph.depth[frame] + 1];
    if (!level) return undefined;
    let widest;
    const end = graph.x[frame] + graph.width[frame];
    for (let i = firstAfter(graph, level, graph.x[frame]); i < level.length && graph.x[level[i]] < end; i++) {
      if (widest === undefined || graph.width[level[i]] > graph.width[widest]) widest = level[i];
    }
    return widest;
  }
}
