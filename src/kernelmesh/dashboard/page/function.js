"use strict";
// What one agent has learned, beside what it has seen itself.
KM.FunctionFigure = class {
  constructor(parent, run, provider) {
    this.run = run;
    this.provider = provider;
    this.agent = 0;
    this.cache = new Map();
    this.root = KM.html("div", { class: "figure" }, parent);
    const name = () => `function-${run.about.title}-agent-${run.about.names[this.agent]}-${this.shown ? this.shown.samples : 0}`;
    this.caption = KM.figureHead(this.root, "the function", {
      PNG: () => KM.saveRaster(this.svg, this.title, name()), SVG: () => KM.saveVector(this.svg, this.title, name()), CSV: () => this.saveTable(name()),
    });
    const animation = provider.animation(run.index);
    if (animation && ["regions", "surface"].includes(run.about.picture) && !run.about.mesh) {
      const button = KM.html("button", { type: "button", title: "Save an animation of the agents' functions as GIF", "aria-label": "Save the animation as GIF" }, this.root.querySelector(".saves"), "GIF");
      button.addEventListener("click", () => KM.html("a", { href: animation, download: `agree-${run.about.title}.gif` }).click());
    }
    this.svg = KM.svg("svg", { role: "img" }, this.root);
    this.own = KM.floats(run.about.own);
    this.held = KM.floats(run.about.held);
    this.build();
    this.observer = KM.onResize(this.root, () => { if (Math.abs(this.root.clientWidth - this.wide) > 2) { this.build(); this.redraw(); } });
  }

  // Two plots, side by side where there is room, and what is drawn in them once for each agent.
  build() {
    const colors = (this.palette = KM.colors()), { about } = this.run;
    this.wide = this.root.clientWidth;
    this.width = Math.max(this.wide / KM.unit(), 240);
    this.svg.replaceChildren();
    const single = about.picture === "curve";
    const stacked = !single && this.width < 440;
    const gap = 26, side = single ? this.width - 10 : stacked ? this.width - 10 : (this.width - gap - 10) / 2;
    const tall = single ? Math.min(side * 0.6, 420) : Math.min(side, 470);
    this.plots = [{ x: 5, y: 22, w: side, h: tall }];
    if (!single) this.plots.push(stacked ? { x: 5, y: 22 + tall + 78, w: side, h: tall } : { x: 5 + side + gap, y: 22, w: side, h: tall });
    const bottom = Math.max(...this.plots.map((plot) => plot.y + plot.h));
    this.height = bottom + (about.classes.length ? 66 : 46);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.titles = this.plots.map((plot) => KM.svg("text", { x: plot.x, y: plot.y - 8, "font-size": 12, fill: colors.ink }, this.svg));
    this.layers = this.plots.map((plot, n) => {
      const id = `clip-${this.run.index}-${n}`;
      const clip = KM.svg("clipPath", { id }, this.svg);
      KM.svg("rect", { x: plot.x, y: plot.y, width: plot.w, height: plot.h, rx: 4 }, clip);
      const frame = KM.svg("rect", { x: plot.x, y: plot.y, width: plot.w, height: plot.h, rx: 4, fill: "none", stroke: colors.line }, this.svg);
      const layer = KM.svg("g", { "clip-path": `url(#${id})` }, this.svg);
      return { frame, layer };
    });
    const [main] = this.plots;
    this.image = KM.svg("image", { x: main.x, y: main.y, width: main.w, height: main.h, preserveAspectRatio: "none" }, this.layers[0].layer);
    this.under = KM.svg("g", {}, this.layers[0].layer);
    this.curve = KM.svg("path", { fill: "none", stroke: colors.accent, "stroke-width": 2.5 }, this.layers[0].layer);
    this.points = KM.svg("g", {}, this.layers[0].layer);
    this.side = KM.svg("g", {}, this.svg);
    this.keys = KM.svg("g", { "font-size": 11, fill: colors.soft }, this.svg);
    this.problem = KM.svg("text", { x: main.x + main.w / 2, y: main.y + main.h / 2, "text-anchor": "middle", "font-size": 12, fill: colors.soft }, this.svg, "Drawing …");
    this.drawnFor = null;
  }

  place(plot, x, y) {
    const [left, right, bottom, top] = this.run.about.box;
    return [plot.x + ((x - left) / (right - left)) * plot.w, plot.y + ((top - y) / (top - bottom)) * plot.h];
  }

  color(value) {
    const { about } = this.run;
    if (about.classifies) return about.colors[Math.round(value)] || this.palette.soft;
    return KM.ramp(about.viridis)((value - about.range[0]) / (about.range[1] - about.range[0] || 1));
  }

  // What does not move: the agent's own samples and how many of each class it has.
  drawOwn() {
    if (this.drawnFor === this.agent) return;
    this.drawnFor = this.agent;
    const { about } = this.run, colors = this.palette;
    this.under.replaceChildren();
    this.side.replaceChildren();
    this.keys.replaceChildren();
    if (about.picture === "curve") {
      const [main] = this.plots;
      for (let n = 0; n < this.held.length; n += 3) this.dot(this.under, main, this.held[n], this.held[n + 1], colors.soft, 1.4, 0.5);
      for (let n = 0; n < this.own.length; n += 4) if (this.own[n + 3] === this.agent) this.dot(this.under, main, this.own[n], this.own[n + 1], colors.second, 2.4, 0.9);
      this.titles[0].textContent = "What it has learned: fitted curve";
      this.key(36, [["line", colors.accent, "fitted curve"], ["spot", colors.soft, "held-out samples"], ["dot", colors.second, "its own samples"], ["dot", colors.dot, "dictionary"]]);
      this.scales();
      return;
    }
    if (about.picture === "projection") {
      for (let n = 0; n < this.held.length; n += 3) this.dot(this.under, this.plots[0], this.held[n], this.held[n + 1], this.color(this.held[n + 2]), 2, 0.3);
      this.titles[0].textContent = "Dictionary, on the first two principal components";
      this.titles[1].textContent = about.classes.length ? "Weights per class, and latest mistakes" : "Weights per output";
      this.key(20, [["dot", colors.dot, `dictionary point${about.classes.length ? ", in the color of its largest weight" : ""}`], ...(this.held.length ? [["spot", colors.soft, "held-out sample"]] : [])]);
      return;
    }
    this.titles[0].textContent = about.picture === "regions" ? "What it has learned: decision regions" : "What it has learned: fitted surface";
    this.titles[1].textContent = "What it has seen itself";
    const group = KM.svg("g", {}, this.side);
    for (let n = 0; n < this.own.length; n += 4) {
      if (this.own[n + 3] === this.agent) this.dot(group, this.plots[1], this.own[n], this.own[n + 1], this.color(this.own[n + 2]), 3, 0.9);
    }
    if (!this.own.length) KM.svg("text", { x: this.plots[1].x + this.plots[1].w / 2, y: this.plots[1].y + this.plots[1].h / 2, "text-anchor": "middle", "font-size": 12, fill: colors.soft }, group, "Its samples are not available here");
    this.drawSeen();
  }

  drawSeen() {
    const { about } = this.run, [main, side] = this.plots, colors = this.palette;
    const classes = about.classes.length;
    if (!classes) {
      const [low, high] = about.range;
      const id = `values-${this.run.index}`, gradient = KM.svg("linearGradient", { id }, this.side);
      about.viridis.forEach((color, n) => KM.svg("stop", { offset: n / (about.viridis.length - 1), "stop-color": color }, gradient));
      KM.svg("rect", { x: main.x, y: main.y + main.h + 8, width: 120, height: 8, fill: `url(#${id})` }, this.side);
      KM.svg("text", { x: main.x + 126, y: main.y + main.h + 16, "font-size": 11, fill: colors.soft }, this.side, `${KM.number(low)} to ${KM.number(high)}`);
      if (!about.mesh) this.key(36, [["dot", colors.dot, "dictionary point"]]);
      return;
    }
    let x = main.x;
    const y = main.y + main.h + 20;
    for (let c = 0; c < Math.min(classes, 12); c++) {
      KM.svg("rect", { x, y: y - 9, width: 10, height: 10, rx: 2, fill: about.colors[c] }, this.side);
      const text = KM.svg("text", { x: x + 14, y, "font-size": 11, fill: colors.soft }, this.side, about.classes[c].length > 3 ? about.classes[c].slice(0, 10) : `class ${about.classes[c]}`);
      x += 20 + Math.max(text.getComputedTextLength(), 10) + 8;
      if (x > main.x + main.w - 40) break;
    }
    if (!about.mesh) this.key(40, [["dot", colors.dot, "dictionary point"]]);
    const seen = about.seen[this.agent] || [], most = Math.max(...seen, 1), width = (side.w - 8) / classes;
    for (let c = 0; c < classes; c++) {
      const share = (seen[c] || 0) / most;
      KM.svg("rect", { x: side.x + c * width + 2, y: side.y + side.h + 34 - 22 * share, width: Math.max(width - 4, 2), height: Math.max(22 * share, 1), rx: 2, fill: seen[c] ? about.colors[c] : colors.line }, this.side);
      if (width > 26) KM.svg("text", { x: side.x + c * width + width / 2, y: side.y + side.h + 48, "text-anchor": "middle", "font-size": 11, fill: seen[c] ? colors.ink : colors.soft }, this.side, !seen[c] ? "none" : about.mesh ? `${Math.round((100 * seen[c]) / seen.reduce((a, b) => a + b))}%` : KM.count(seen[c]));
    }
  }

  // What dots and lines stand for, in rows below the first plot.
  key(below, items) {
    const [main] = this.plots;
    let x = main.x, y = main.y + main.h + below;
    for (const [kind, color, words] of items) {
      const group = KM.svg("g", {}, this.keys), text = KM.svg("text", { x: 14 }, group, words);
      if (kind === "line") KM.svg("line", { x1: 0, x2: 10, y1: -4, y2: -4, stroke: color, "stroke-width": 2.5 }, group);
      else KM.svg("circle", { cx: 5, cy: -4, r: kind === "dot" ? 4 : 2, fill: color, stroke: kind === "dot" ? this.palette.ring : "none" }, group);
      const wide = text.getComputedTextLength() + 28;
      if (x > main.x && x + wide > main.x + main.w + 20) [x, y] = [main.x, y + 16];
      group.setAttribute("transform", `translate(${x.toFixed(1)} ${y})`);
      x += wide;
    }
  }

  // The ends of both axes.
  scales() {
    const [left, right, bottom, top] = this.run.about.box, [main] = this.plots;
    const write = (x, y, anchor, value) => KM.svg("text", { x, y, "text-anchor": anchor }, this.keys, KM.number(value));
    write(main.x, main.y + main.h + 14, "start", left);
    write(main.x + main.w, main.y + main.h + 14, "end", right);
    write(main.x + 6, main.y + 14, "start", top);
    write(main.x + 6, main.y + main.h - 18, "start", bottom);
  }

  dot(parent, plot, x, y, fill, r, opacity) {
    const [cx, cy] = this.place(plot, x, y);
    return KM.svg("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r, fill, opacity }, parent);
  }

  // Ask for the function at a frame; only the newest wish counts.
  show(frame, agent) {
    this.wish = { round: Math.round(frame.totals[0]), agent };
    if (!this.busy) this.fetch();
  }

  async fetch() {
    const { round, agent } = this.wish, key = `${agent}/${round}`;
    let found = this.cache.get(key);
    if (!found) {
      this.busy = true;
      const began = performance.now();
      found = await this.provider.function(this.run.index, agent, round);
      // as long a pause as the answer took: scrubbing must not keep the server busy all the time
      setTimeout(() => { this.busy = false; if (this.wish.round !== round || this.wish.agent !== agent) this.fetch(); }, Math.min(performance.now() - began, 100));
      if (!found.problem && !this.run.about.mesh) {
        this.cache.set(key, found);
        if (this.cache.size > 300) this.cache.delete(this.cache.keys().next().value);
      }
    }
    this.agent = agent;
    this.render(found);
    if (!this.busy && (this.wish.round !== round || this.wish.agent !== agent)) this.fetch();
  }

  dispose() { this.observer.disconnect(); }
  redraw() { if (this.shown) this.render(this.shown); }

  render(found) {
    this.drawOwn();
    this.problem.textContent = found.problem ? "This function is not available" : "";
    if (found.problem) return;
    this.shown = found;
    const { about } = this.run, [main] = this.plots, colors = this.palette;
    if (found.image) this.image.setAttribute("href", found.image);
    if (found.line) this.curve.setAttribute("d", found.line[0].map((x, n) => `${n ? "L" : "M"}${this.place(main, x, found.line[1][n]).map((v) => v.toFixed(1)).join(" ")}`).join(""));
    while (this.points.childElementCount > found.points.length) this.points.lastChild.remove();
    while (this.points.childElementCount < found.points.length) KM.svg("circle", { stroke: colors.ring, "stroke-width": 1.5, r: 4.2 }, this.points);
    found.points.forEach(([x, y, strongest], n) => {
      const [cx, cy] = about.picture === "curve" ? [this.place(main, x, 0)[0], main.y + main.h - 6] : this.place(main, x, y);
      const circle = this.points.children[n];
      circle.setAttribute("cx", cx.toFixed(1));
      circle.setAttribute("cy", cy.toFixed(1));
      circle.setAttribute("fill", about.picture === "projection" && about.classes.length ? this.color(strongest) : colors.dot);
    });
    if (about.picture === "projection") this.renderSide(found);
    const name = about.names[this.agent];
    this.caption.textContent = `${this.run.prefix}${KM.named(name)} after ${KM.count(found.samples)} samples, ${KM.count(found.order)} points`;
    this.svg.setAttribute("aria-label", this.words(found));
  }

  // Where there is no plane to draw in: weights per class, and the held-out samples that it now gets wrong.
  renderSide(found) {
    const { about } = this.run, side = this.plots[1], colors = this.palette;
    this.side.replaceChildren();
    const shown = found.weights.slice(0, 14), most = Math.max(...shown, 1e-9), high = Math.min(18, (side.h * 0.5) / shown.length);
    shown.forEach((weight, c) => {
      const y = side.y + 6 + c * high;
      KM.svg("text", { x: side.x + 54, y: y + high * 0.7, "font-size": 11, "text-anchor": "end", fill: colors.soft }, this.side, about.classes[c] !== undefined ? `class ${about.classes[c]}` : `output ${c}`);
      KM.svg("rect", { x: side.x + 60, y: y + 2, width: ((side.w - 110) * weight) / most, height: Math.max(high - 5, 2), rx: 2, fill: about.colors[c] || colors.accent }, this.side);
      KM.svg("text", { x: side.x + 64 + ((side.w - 110) * weight) / most, y: y + high * 0.7, "font-size": 10, fill: colors.soft }, this.side, KM.number(weight));
    });
    const top = side.y + 26 + shown.length * high;
    (found.mistakes || []).slice(0, Math.floor((side.y + side.h - top) / 17)).forEach((mistake, n) => {
      const text = `Sample ${mistake.sample}: class ${mistake.truth}, predicted ${mistake.guess}${mistake.new ? " (new)" : ""}`;
      KM.svg("text", { x: side.x + 8, y: top + 17 * n, "font-size": 11.5, fill: mistake.new ? colors.ink : colors.soft }, this.side, text);
    });
    if (found.mistakes && !found.mistakes.length) KM.svg("text", { x: side.x + 8, y: top, "font-size": 11.5, fill: colors.soft }, this.side, "No mistakes on the recorded held-out samples");
  }

  get title() { return `${this.run.about.title}: ${this.caption.textContent.slice(this.run.prefix.length)}`; }

  words(found) {
    const { about } = this.run, seen = about.seen[this.agent] || [];
    const classes = about.classes.filter((_, c) => seen[c]);
    const kind = { regions: "Decision regions", surface: "Fitted surface", curve: "Fitted curve", projection: "Dictionary" }[about.picture];
    return `${kind} of ${KM.named(about.names[this.agent])} after ${KM.count(found.samples)} samples, with ${found.order} dictionary points.` +
      (classes.length ? ` Its own samples are of class ${classes.join(", ")}.` : "");
  }

  saveTable(name) {
    if (!this.shown) return;
    const rows = [["x1", "x2", "strongest output"], ...this.shown.points];
    if (this.shown.line) rows.push([], ["x", "f(x)"], ...this.shown.line[0].map((x, n) => [x, this.shown.line[1][n]]));
    if (this.shown.weights.length) rows.push([], ["output", "sum of absolute weights"], ...this.shown.weights.map((weight, c) => [this.run.about.classes[c] ?? c, weight]));
    KM.download(new Blob([KM.csv(rows)], { type: "text/csv" }), `${name}.csv`);
  }
};
