"use strict";
// The curves: one faint line per agent, the mean strong, against samples; two runs share their axes.
KM.CURVES = [
  { key: "objective", title: "Objective per agent", unit: "mean over agents", agent: (run, f, i) => run.agent(f, i, "loss"), mean: (run, f) => run.total(f, "objective") / Math.max(run.agents, 1) },
  { key: "disagreement", title: "Disagreement per agent", unit: "mean over agents, log scale", log: true, agents: (run, f) => run.agentDisagreements(f), mean: (run, f) => run.total(f, "disagreement") / Math.max(run.agents, 1) },
  { key: "score", title: "Accuracy", unit: "mean over agents; dotted: worst agent", agent: (run, f, i) => run.agent(f, i, "score"), mean: (run, f) => run.total(f, "score_mean"), worst: (run, f) => run.total(f, "score_worst") },
  { key: "order", title: "Model order", unit: "dictionary points, mean over agents", agent: (run, f, i) => run.agent(f, i, "order"), mean: (run, f) => run.total(f, "order_mean") },
  { key: "bytes", title: "Bytes per sample", unit: "sent over all edges, mean over agents", agent: (run, f, i) => run.agent(f, i, "bytes") / Math.max(run.agent(f, i, "samples"), 1), mean: (run, f) => run.total(f, "bytes_per_sample") },
];
KM.LINE_POINTS = 6000; // of all agents' lines in one panel

KM.CurveFigure = class {
  constructor(parent, spec, runs) {
    this.spec = spec;
    this.runs = runs;
    this.root = KM.html("div", { class: "figure" }, parent);
    const name = () => `${spec.key}-${runs.map((run) => run.about.title).join("-")}`;
    this.caption = KM.figureHead(this.root, `the curve of ${this.title.toLowerCase()}`, {
      PNG: () => this.saveImage("png", name()), SVG: () => this.saveImage("svg", name()), CSV: () => this.saveTable(name()),
    });
    this.plot = KM.html("div", { class: "plot" }, this.root);
    this.canvas = KM.html("div", { class: "canvas", role: "img" }, this.plot);
    this.future = KM.html("div", { class: "future" }, this.plot);
    this.veil = KM.html("div", { class: "veil" }, this.future);
    this.drawn = Promise.resolve();
    this.observer = KM.onResize(this.plot, () => { if (this.ready) { Plotly.Plots.resize(this.canvas).then(() => { if (this.ready) { this.fit(); this.cursor(this.samples); } }); } });
  }

  get title() { if (this.spec.key === "objective" && this.runs[0].about.mesh) return "Loss"; return this.spec.key === "score" && !this.runs[0].about.classifies ? "Error" : this.spec.title; }
  get known() { return this.runs.some((run) => run.frames.some((frame) => Number.isFinite(this.spec.mean(run, frame)))); }

  values(run, frame) {
    if (this.spec.agents) return this.spec.agents(run, frame);
    return Array.from({ length: run.agents }, (_, i) => this.spec.agent(run, frame, i));
  }

  shown(value) { return this.spec.log && !(value > 0) ? null : Number.isFinite(value) ? value : null; }

  traces() {
    const colors = KM.colors(), strong = [colors.accent, colors.second], out = [];
    this.extent = [Infinity, -Infinity];
    this.runs.forEach((run, k) => {
      const stride = Math.max(1, Math.ceil((run.frames.length * run.agents) / (KM.LINE_POINTS / this.runs.length)));
      const frames = run.frames.filter((_, n) => n % stride === 0 || n === run.frames.length - 1);
      const x = [], y = [], columns = frames.map((frame) => this.values(run, frame));
      const samples = frames.map((frame) => run.total(frame, "samples"));
      for (let i = 0; i < run.agents; i++) {
        for (let n = 0; n < frames.length; n++) {
          const value = this.shown(columns[n][i]);
          x.push(samples[n]);
          y.push(value);
          if (value !== null) this.extent = [Math.min(this.extent[0], value), Math.max(this.extent[1], value)];
        }
        x.push(null); y.push(null);
      }
      if (run.agents > 1) out.push({ x, y, mode: "lines", line: { color: strong[k], width: 1 }, opacity: run.agents > 40 ? 0.16 : run.agents > 8 ? 0.28 : 0.45, hoverinfo: "skip", showlegend: false });
    });
    this.runs.forEach((run, k) => {
      const x = run.frames.map((frame) => run.total(frame, "samples"));
      const line = (y, dash, width, name) => ({ x, y: y.map((v) => this.shown(v)), mode: "lines", name, line: { color: strong[k], width, dash }, hovertemplate: `%{y:.4~g} <i>${name}</i><extra></extra>` });
      const who = this.runs.length > 1 ? `${"AB"[k]} ` : "";
      out.push(line(run.frames.map((f) => this.spec.mean(run, f)), k ? "dash" : "solid", 2.6, `${who}mean`));
      if (this.spec.worst) out.push(line(run.frames.map((f) => this.spec.worst(run, f)), "dot", 1.6, `${who}worst`));
    });
    return out;
  }

  layout() {
    const colors = KM.colors(), unit = KM.unit();
    const axis = { gridcolor: colors.line, zeroline: false, linecolor: colors.line, tickfont: { size: 11 * unit }, automargin: false };
    const marks = this.runs.flatMap((run, k) => run.about.marks.map((mark) => ({
      type: "line", xref: "x", yref: "paper", x0: mark.samples, x1: mark.samples, y0: 0, y1: mark.kind === "penalty" ? 0.12 : 1,
      line: { width: mark.kind === "penalty" ? 1.5 : 1, dash: mark.kind === "penalty" ? "solid" : "dot", color: mark.kind === "penalty" ? colors.soft : colors.bad }, layer: "below", opacity: k ? 0.5 : 0.9,
    })));
    return {
      margin: { l: 50 * unit, r: 12, t: 6, b: 34 * unit }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "x",
      font: { family: KM.FONT, size: 12, color: colors.soft }, dragmode: false, shapes: marks,
      hoverlabel: { bgcolor: colors.card, bordercolor: colors.line, font: { color: colors.ink, size: 11 } },
      xaxis: { ...axis, title: { text: "samples per agent", font: { size: 11 * unit }, standoff: 4 }, rangemode: "tozero", nticks: 6, tickformat: ",d", fixedrange: true },
      yaxis: { ...axis, type: this.spec.log ? "log" : "linear", nticks: 6, fixedrange: true, ...(this.spec.log ? this.logTicks() : {}),
        rangemode: this.spec.log || this.spec.key === "score" ? "normal" : "tozero", tickformat: this.spec.key === "score" && this.runs[0].about.classifies ? ".1~%" : ",~g" },
    };
  }

  // Powers of ten, or 1, 2 and 5 times those where there are few.
  logTicks() {
    if (!(this.extent[0] > 0) || !Number.isFinite(this.extent[1])) return {};
    const [low, high] = this.extent.map(Math.log10);
    const steps = high - low < 2 ? [1, 2, 5] : [1], every = Math.max(1, Math.ceil((high - low) / 5));
    const powers = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, n) => Math.floor(low) + n).filter((p) => p % every === 0);
    const tickvals = powers.flatMap((power) => steps.map((step) => step * 10 ** power));
    return { tickvals, ticktext: tickvals.map((value) => (value < 1e5 ? KM.number(value) : KM.scientific(value)).replace("1.0 × ", "")) };
  }

  draw() {
    this.root.hidden = !this.known;
    if (this.root.hidden || !this.root.isConnected) return Promise.resolve();
    const how = { displayModeBar: false, responsive: false };
    this.drawn = Plotly.react(this.canvas, this.traces(), this.layout(), how).then(() => { this.ready = true; this.fit(); this.cursor(this.samples); });
    return this.drawn;
  }

  dispose() { this.observer.disconnect(); this.ready = false; Plotly.purge(this.canvas); }

  // A line at the shown time, over a paler future; it moves without drawing the curve again.
  cursor(samples) {
    this.samples = samples;
    const layout = this.canvas._fullLayout;
    if (!this.ready || !layout || samples === undefined) return;
    const { xaxis } = layout, at = Math.min(Math.max(xaxis.l2p(samples), 0), xaxis._length);
    this.veil.style.transform = `translateX(${at.toFixed(1)}px)`;
    const now = this.runs.map((run) => (run.frames.length ? this.spec.mean(run, run.frames[run.at(samples)]) : NaN));
    const text = now.map((value) => (this.spec.key === "score" && this.runs[0].about.classifies ? KM.percent(value) : KM.number(value)));
    this.text = `${this.title}: ${text.join(" and ")}`;
    if (!this.shownValues) {
      this.caption.title = this.spec.unit;
      KM.html("b", {}, this.caption, `${this.title} `);
      this.shownValues = text.map((_, k) => {
        const value = KM.html("span", { class: this.runs.length > 1 ? `value ${"ab"[k]}` : "value" }, this.caption);
        this.caption.append(" ");
        return value;
      });
    }
    text.forEach((each, k) => KM.write(this.shownValues[k], each));
  }

  // Where the curve is within the figure; only the veil within moves, which costs next to nothing.
  fit() {
    const { xaxis, yaxis } = this.canvas._fullLayout, box = this.future.style;
    Object.assign(box, { display: "block", left: `${xaxis._offset}px`, top: `${yaxis._offset}px`, width: `${xaxis._length + 2}px`, height: `${yaxis._length}px` });
  }

  label() { if (this.text) this.canvas.setAttribute("aria-label", `${this.text} (${this.spec.unit}) after ${KM.count(this.samples)} samples`); }

  async saveImage(format, name) {
    const size = { width: 900, height: 520 };
    const colors = KM.colors();
    const titled = (name) => this.runs.reduce((text, run, k) => (this.runs.length > 1 ? text.replace(`${"AB"[k]} `, `${run.about.title}, `) : text), name);
    const data = this.traces().map((trace) => (trace.name ? { ...trace, name: titled(trace.name) } : trace));
    const figure = { data, layout: { ...this.layout(), showlegend: true, legend: { orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom" }, paper_bgcolor: colors.card, title: { text: this.title, font: { size: 16, color: colors.ink }, x: 0.02 }, margin: { l: 64, r: 20, t: 44, b: 48 } } };
    const url = await Plotly.toImage(figure, { format, ...size, scale: format === "png" ? 2 : 1 });
    KM.download(KM.fromDataUrl(url), `${name}.${format}`);
  }

  saveTable(name) {
    const rows = [];
    this.runs.forEach((run) => {
      rows.push(["run", "samples", "mean", ...(this.spec.worst ? ["worst"] : []), ...run.about.names.map((agent) => `agent ${agent}`)]);
      run.frames.forEach((f) => rows.push([run.about.title, run.total(f, "samples"), this.spec.mean(run, f), ...(this.spec.worst ? [this.spec.worst(run, f)] : []), ...this.values(run, f)]));
    });
    KM.download(new Blob([KM.csv(rows)], { type: "text/csv" }), `${name}.csv`);
  }
};
