"use strict";
// The graph: one node per agent, size by model order, color by accuracy or loss; edges by disagreement and bytes.
KM.NetworkFigure = class {
  constructor(parent, run, choose) {
    this.run = run;
    this.choose = choose;
    this.colorBy = "score";
    this.root = KM.html("div", { class: "figure" }, parent);
    const name = () => `network-${run.about.title}-${Math.round(run.total(this.frame, "samples"))}`;
    this.caption = KM.figureHead(this.root, "the network", {
      PNG: () => KM.saveRaster(this.svg, this.title, name()), SVG: () => KM.saveVector(this.svg, this.title, name()), CSV: () => this.saveTable(name()),
    });
    this.svg = KM.svg("svg", { role: "img" }, this.root);
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", (event) => KM.tip(event, ""));
    this.svg.addEventListener("click", (event) => {
      const node = event.target.closest("[data-agent]");
      if (node) this.choose(Number(node.dataset.agent));
    });
    this.selected = 0;
    this.build();
    this.observer = KM.onResize(this.root, () => { if (Math.abs(this.root.clientWidth - this.wide) > 2) { this.build(); this.redraw(); } });
  }

  build() {
    const { about } = this.run;
    const colors = (this.palette = KM.colors());
    this.viridis = KM.steps(about.viridis);
    this.ramp = KM.steps([colors["edge-low"], colors["edge-high"]]);
    this.scale = this.run.scale;
    this.wide = this.root.clientWidth;
    this.width = Math.max(this.wide / KM.unit(), 240);
    this.legendRows = this.width < 460 ? 2 : 1;
    // as high as the graph needs, so that a line of agents leaves no empty space, and as wide as there is room
    const [wide, tall] = [0, 1].map((axis) => Math.max(...about.positions.map((at) => at[axis])) - Math.min(...about.positions.map((at) => at[axis])));
    this.stroke = Math.min(1, Math.sqrt(80 / Math.max(about.edges.length, 1))); // thinner lines where there are many
    const plot = Math.min(this.width * Math.max(0.76 * tall, 0.36), 560), legend = 52 * this.legendRows;
    this.height = plot + legend;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    const pad = 34, size = [this.width - 2 * pad, plot - 2 * pad];
    this.at = about.positions.map(([x, y]) => [pad + (0.5 + (x - 0.5) / Math.max(wide, 0.5)) * size[0], pad + (0.5 + (y - 0.5) / Math.max(tall, 0.36 / 0.76)) * size[1]]);
    let nearest = Infinity; // between two agents
    this.at.forEach(([x, y], i) => { for (let j = 0; j < i; j++) nearest = Math.min(nearest, Math.hypot(x - this.at[j][0], y - this.at[j][1])); });
    this.biggest = Math.max(Math.min((0.16 * size[0]) / Math.sqrt(this.run.agents || 1), 0.42 * nearest, 24), 5);
    const edges = KM.svg("g", { "stroke-linecap": "round" }, this.svg);
    this.lines = about.edges.map(([i, j], n) => KM.svg("line", {
      x1: this.at[i][0], y1: this.at[i][1], x2: this.at[j][0], y2: this.at[j][1], "data-edge": n,
    }, edges));
    const nodes = KM.svg("g", {}, this.svg);
    const labeled = this.run.agents <= 60;
    this.halo = KM.svg("circle", { fill: "none", stroke: colors.ink, "stroke-width": 2.5 }, nodes);
    this.nodes = about.names.map((name, i) => {
      const group = KM.svg("g", { class: "node", "data-agent": i, transform: `translate(${this.at[i].join(" ")})` }, nodes);
      const mark = KM.svg("circle", { fill: "none", stroke: colors.bad, "stroke-width": 2, "stroke-dasharray": "3 3", visibility: "hidden" }, group);
      const circle = KM.svg("circle", { "stroke-width": 1.5 }, group);
      const short = name.replace(/^.*?(\d+)$/, "$1");
      const label = labeled && short.length <= 4
        ? KM.svg("text", { "text-anchor": "middle", dy: "0.35em", "font-size": Math.max(8, Math.min(11, this.biggest * 0.7)) }, group, short) : null;
      return { circle, mark, label };
    });
    this.legend(plot);
  }

  legend(top) {
    const { ranges } = this.run;
    const { soft, ink } = this.palette;
    const group = KM.svg("g", { "font-size": 11, fill: soft }, this.svg);
    const width = this.width / (4 / this.legendRows) - 14;
    const slot = (n) => [10 + (n % (4 / this.legendRows)) * (width + 14), top + 14 + 52 * Math.floor(n / (4 / this.legendRows))];
    const bar = (n, title, stops, low, high) => {
      const [x, y] = slot(n), id = `ramp-${this.run.index}-${n}`;
      KM.svg("text", { x, y, fill: ink }, group, title);
      const gradient = KM.svg("linearGradient", { id }, group);
      stops.forEach((color, s) => KM.svg("stop", { offset: s / (stops.length - 1), "stop-color": color }, gradient));
      KM.svg("rect", { x, y: y + 6, width: Math.min(width, 130), height: 8, rx: 2, fill: `url(#${id})` }, group);
      KM.svg("text", { x, y: y + 27 }, group, low);
      KM.svg("text", { x: x + Math.min(width, 130), y: y + 27, "text-anchor": "end" }, group, high);
    };
    const range = ranges[this.colorBy], show = this.colorBy === "score" && this.run.about.classifies ? (v) => KM.percent(v, 0) : (v) => KM.number(v, 2);
    const label = this.colorBy === "loss" ? "Loss" : this.run.about.classifies ? "Accuracy" : "Error";
    const better = label === "Accuracy";
    bar(0, label, this.run.about.viridis, (better ? "≤ " : "") + show(range.low), (better ? "" : "≥ ") + show(range.high));
    const disagreement = ranges.disagreement;
    bar(1, "Disagreement", [this.palette["edge-low"], this.palette["edge-high"]], KM.number(Math.max(disagreement.low, disagreement.high * 1e-5), 2), KM.number(disagreement.high, 2));
    let [x, y] = slot(2);
    KM.svg("text", { x, y, fill: ink }, group, "Model order");
    let along = x;
    [0.25, 1].forEach((share) => {
      const order = Math.max(Math.round(share * ranges.order.high), 1), r = this.radius(order) * 0.62;
      KM.svg("circle", { cx: along + r, cy: y + 17, r, fill: soft, opacity: 0.7 }, group);
      const text = KM.svg("text", { x: along + 2 * r + 4, y: y + 21 }, group, KM.count(order));
      along += 2 * r + 14 + Math.max(text.getComputedTextLength(), 8);
    });
    [x, y] = slot(3);
    KM.svg("text", { x, y, fill: ink }, group, "Bytes so far");
    KM.svg("line", { x1: x, y1: y + 12, x2: x + 40, y2: y + 12, stroke: soft, "stroke-width": 1 }, group);
    KM.svg("line", { x1: x, y1: y + 22, x2: x + 40, y2: y + 22, stroke: soft, "stroke-width": 4.3 * this.stroke }, group);
    KM.svg("text", { x: x + 46, y: y + 26 }, group, KM.bytes(ranges.bytes.high));
  }

  radius(order) {
    const most = this.run.ranges.order.high || 1;
    return this.biggest * (0.45 + 0.55 * Math.sqrt(Math.max(order, 0) / most));
  }

  dispose() { this.observer.disconnect(); }
  redraw() { if (this.frame) this.draw(this.frame); }

  draw(frame) {
    this.frame = frame;
    if (this.scale !== this.run.scale) this.build();
    const { run, palette } = this;
    const { ranges } = run;
    const { viridis, ramp } = this;
    const most = ranges.bytes.high || 1;
    for (let n = 0; n < this.lines.length; n++) {
      const line = this.lines[n];
      KM.put(line, "stroke", ramp(ranges.disagreement.logShare(frame.edges[2 * n])));
      KM.put(line, "stroke-width", Math.round(4 * this.stroke * (0.8 + 3.5 * Math.sqrt(Math.max(frame.edges[2 * n + 1], 0) / most))) / 4);
    }
    const range = ranges[this.colorBy];
    for (let i = 0; i < this.nodes.length; i++) {
      const { circle, mark, label } = this.nodes[i];
      const value = run.agent(frame, i, this.colorBy), share = range.share(value), away = run.agent(frame, i, "state") === 1;
      const r = Math.round(2 * this.radius(run.agent(frame, i, "order"))) / 2, color = Number.isFinite(value) ? viridis(share) : palette.soft;
      KM.put(circle, "r", r);
      KM.put(circle, "fill", away ? palette.card : color);
      KM.put(circle, "stroke", away ? color : palette.card);
      KM.put(circle, "stroke-width", away ? 3 : 1.5);
      KM.put(mark, "visibility", this.doubted(i) ? "visible" : "hidden");
      KM.put(mark, "r", r + 8);
      if (label) KM.put(label, "fill", away ? palette.ink : share > 0.55 ? "#14181d" : "#ffffff");
      if (i === this.selected) {
        KM.put(this.halo, "r", r + 4);
        KM.put(this.halo, "transform", `translate(${this.at[i].join(" ")})`);
      }
    }
    const count = (holds) => this.nodes.filter((_, i) => holds(i)).length;
    const away = count((i) => run.agent(frame, i, "state") === 1), doubted = count((i) => this.doubted(i));
    KM.write(this.caption, `${run.prefix}${run.agents} agents, ${run.edges} edges` + (away ? `; ${away} away (hollow)` : "") + (doubted ? `; ${doubted} with refused messages (dashed)` : ""));
  }

  // Whether neighbors refuse messages of an agent.
  doubted(i) { return this.run.agent(this.frame, i, "refused") > 0; }

  hover(event) {
    const node = event.target.closest("[data-agent]"), edge = event.target.closest("[data-edge]");
    if (!this.frame || (!node && !edge)) return KM.tip(event, "");
    KM.tip(event, node ? this.agentText(Number(node.dataset.agent)) : this.edgeText(Number(edge.dataset.edge)));
  }

  agentText(i) {
    const { run, frame } = this;
    const score = run.agent(frame, i, "score"), state = ["learning", "away", "stream has ended"][run.agent(frame, i, "state")] || "";
    const lines = [`${KM.named(run.about.names[i])} (${state})`, `${KM.count(run.agent(frame, i, "samples"))} samples, model order ${KM.count(run.agent(frame, i, "order"))}`];
    if (Number.isFinite(score)) lines.push(run.about.classifies ? `accuracy ${KM.percent(score)}` : `error ${KM.number(score)}`);
    if (Number.isFinite(run.agent(frame, i, "loss"))) lines.push(`loss ${KM.number(run.agent(frame, i, "loss"))}`);
    lines.push(`sent ${KM.bytes(run.agent(frame, i, "bytes"))}`);
    if (run.agent(frame, i, "refused") > 0) lines.push(`neighbors refused ${KM.count(run.agent(frame, i, "refused"))} of its messages`);
    return lines.join("\n");
  }

  edgeText(n) {
    const [i, j] = this.run.about.edges[n], names = this.run.about.names;
    return `${KM.named(names[i])} – ${names[j]}\ndisagreement ${KM.number(this.frame.edges[2 * n])}\n${KM.bytes(this.frame.edges[2 * n + 1])} so far`;
  }

  get title() { return `${this.run.about.title} after ${KM.count(this.run.total(this.frame, "samples"))} samples per agent`; }
  label(text) { this.svg.setAttribute("aria-label", text); }

  saveTable(name) {
    const { run, frame } = this;
    const columns = run.about.columns.agents;
    const rows = [["agent", ...columns], ...run.about.names.map((agent, i) => [agent, ...columns.map((column) => run.agent(frame, i, column))])];
    rows.push([], ["from", "to", ...run.about.columns.edges]);
    run.about.edges.forEach(([i, j], n) => rows.push([run.about.names[i], run.about.names[j], frame.edges[2 * n], frame.edges[2 * n + 1]]));
    KM.download(new Blob([KM.csv(rows)], { type: "text/csv" }), `${name}.csv`);
  }
};
