"use strict";
// The page: loads one or two runs, shows them at one time, and follows those in progress.
KM.App = class {
  constructor(provider) {
    this.provider = provider;
    this.agent = 0;
    this.runs = [];
    this.figures = { networks: [], functions: [], curves: [] };
    this.find = (id) => document.getElementById(id);
  }

  async start() {
    this.clock = new KM.Clock((samples, playing) => this.wish(samples, playing));
    this.clock.neighbor = (samples, count) => this.neighbor(samples, count);
    this.find("theme").addEventListener("click", () => this.switchTheme());
    this.find("agent").addEventListener("change", (event) => this.choose(Number(event.target.value)));
    this.find("color-by").addEventListener("change", () => this.recolor());
    this.find("agents-details").addEventListener("toggle", () => this.agentTable());
    document.addEventListener("keydown", (event) => {
      if (event.target.matches && event.target.matches("select, input:not([type=range])")) return;
      if (event.key === "[") this.choose(this.agent - 1);
      if (event.key === "]") this.choose(this.agent + 1);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
    await this.reload();
    this.provider.listen((message) => this.hear(message), () => this.lost(), () => this.reload());
  }

  async reload() {
    let loaded;
    try { loaded = await this.provider.load(); } catch (error) { return this.banner(`The runs cannot be loaded: ${error.message}`); }
    this.runs = loaded.map(({ about, frames }, k) => new KM.Run(k, about, frames));
    this.runs.forEach((run, k) => { run.prefix = this.comparing ? `${"AB"[k]}, ${run.about.title}: ` : ""; });
    KM.shareRanges(this.runs);
    this.build();
  }

  get comparing() { return this.runs.length > 1; }
  get end() { return Math.max(...this.runs.map((run) => run.samples), 0); }
  get isLive() { return !this.provider.fixed && this.runs.some((run) => run.about.live && ["running", "waiting"].includes(run.about.status)); }

  build() {
    document.body.classList.toggle("comparing", this.comparing);
    const { find } = this;
    for (const figures of Object.values(this.figures)) for (const figure of figures) figure.dispose();
    for (const id of ["networks", "functions", "curves"]) find(id).replaceChildren();
    this.titles();
    this.agent = Math.min(this.agent, Math.max((this.runs[0]?.agents || 1) - 1, 0));
    const some = this.runs.filter((run) => run.agents && run.frames.length);
    this.figures.networks = some.map((run) => new KM.NetworkFigure(find("networks"), run, (agent) => this.choose(agent)));
    this.figures.functions = some.filter((run) => run.about.has_functions).map((run) => new KM.FunctionFigure(find("functions"), run, this.provider));
    const shown = this.runs.filter((run) => run.frames.length);
    this.figures.curves = shown.length ? KM.CURVES.map((spec) => new KM.CurveFigure(find("curves"), spec, shown)) : [];
    for (const [id, there, why] of [
      ["networks", some.length, "No agents have been recorded yet."], ["functions", this.figures.functions.length, "No functions have been recorded."],
      ["curves", shown.length, "Nothing has been measured yet."]]) if (!there) KM.html("p", { class: "empty" }, find(id), why);
    this.choices();
    this.about();
    this.settle();
    const follow = this.isLive && (this.following === undefined || this.clock.following);
    this.following = follow;
    this.clock.following = follow;
    this.bounds();
    if (!follow) this.clock.set(this.first ? this.clock.samples : this.end);
    this.first = true;
    this.drawCurves();
  }

  bounds() { this.clock.bounds(this.end, this.isLive, this.runs.flatMap((run) => run.about.marks)); }

  titles() {
    const { find } = this, about = this.runs.map((run) => run.about);
    const value = (rows, name) => (rows.find(([key]) => key === name) || [])[1];
    const title = about.map((each) => each.title).join(" and ");
    find("title").textContent = title || "kernelmesh";
    document.title = `${title} – kernelmesh`;
    const facts = about.map((each, k) => {
      const named = ["protocol", "rule", "partition"].map((name) => value(each.config, name)).filter(Boolean);
      if (value(each.config, "seed") !== undefined) named.push(`seed ${value(each.config, "seed")}`);
      const agents = each.names.length ? [`${each.names.length} agents`] : [];
      return `${this.comparing ? `${"AB"[k]}: ` : ""}${[...agents, ...named].join(", ")}`;
    });
    find("subtitle").textContent = facts.join("  ·  ");
    const key = find("curves-key");
    key.replaceChildren();
    about.forEach((each, k) => {
      const item = KM.html("span", {}, key, this.comparing ? `${"AB"[k]} ${each.title} ${k ? "(dashed)" : ""}` : "strong: mean, faint: each agent");
      if (this.comparing) item.style.color = `var(--${k ? "second" : "accent"})`;
    });
  }

  choices() {
    const run = this.runs[0], agents = this.find("agent"), colors = this.find("color-by");
    agents.replaceChildren(...(run?.about.names || []).map((name, i) => KM.html("option", { value: i }, null, name)));
    agents.value = this.agent;
    const scored = this.runs.some((each) => Number.isFinite(each.ranges.score.low));
    const names = [...(scored ? [["score", run.about.classifies ? "accuracy" : "error"]] : []), ["loss", "loss"]];
    colors.replaceChildren(...names.map(([value, text]) => KM.html("option", { value }, null, text)));
    this.figures.networks.forEach((figure) => { figure.colorBy = names[0][0]; figure.build(); });
    this.find("network-panel").hidden = this.find("function-panel").hidden = !this.runs.some((each) => each.agents);
  }

  // How every source is doing, at the top of the page.
  settle() {
    const abouts = this.runs.map((run) => run.about);
    const words = { running: "Live", complete: "Finished", interrupted: "Interrupted", diverged: "Diverged", waiting: "Waiting", unreadable: "Cannot be read" };
    const worst = ["unreadable", "diverged", "waiting", "interrupted", "running", "complete"].find((status) => abouts.some((each) => each.status === status));
    const pill = this.find("status");
    pill.textContent = words[worst] || "Finished";
    pill.dataset.status = worst;
    const messages = abouts.filter((each) => each.message && (each.status !== "complete" || !each.live)).map((each) => (this.comparing ? `${each.title}: ` : "") + each.message);
    this.banner(messages.join(" "));
    this.find("banner").dataset.kind = ["unreadable", "diverged", "waiting"].includes(worst) ? "bad" : "info";
    this.find("live").hidden = !this.isLive;
  }

  banner(text) {
    const banner = this.find("banner");
    banner.hidden = !text;
    if (banner.textContent !== text) banner.textContent = text;
  }

  lost() {
    const pill = this.find("status");
    pill.textContent = "Disconnected";
    pill.dataset.status = "lost";
    this.banner("The dashboard does not answer any more: it has been stopped, or its source has ended. What is shown stays; the page goes on when it is back.");
  }

  async hear(message) {
    const run = this.runs[message.run];
    if (!run || message.generation !== run.about.generation || message.newest > run.newest + (message.frames ? Infinity : 0)) return this.reload();
    const ended = run.about.status !== message.status;
    Object.assign(run.about, { status: message.status, message: message.message });
    if (message.frames) {
      const had = run.frames.length;
      run.append(message.frames);
      if (!had && run.frames.length) return this.reload();
      KM.shareRanges(this.runs);
      this.bounds();
      this.redrawCurvesSoon();
    }
    if (ended && !this.isLive) this.clock.pause();
    this.settle();
  }

  // Show a time at the next frame of the screen; only the newest wish counts.
  wish(samples, playing) {
    this.wanted = { samples, playing };
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.show(this.wanted.samples, this.wanted.playing); });
  }

  show(samples, playing) {
    const frames = this.runs.map((run) => run.frames[run.at(samples)]);
    this.figures.networks.forEach((figure) => figure.draw(figure.run.frames[figure.run.at(samples)]));
    this.figures.functions.forEach((figure) => figure.show(figure.run.frames[figure.run.at(samples)], Math.min(this.agent, figure.run.agents - 1)));
    this.figures.curves.forEach((figure) => figure.cursor(samples));
    this.numbers(frames);
    this.drawn = (this.drawn || 0) + 1;
    this.firstShown = this.firstShown || performance.now();
    clearTimeout(this.later);
    if (!playing) this.later = setTimeout(() => this.tell(samples, frames), 500);
    if (this.find("agents-details").open) this.agentTable();
  }

  numbers(frames) {
    const run = this.runs[0], scored = this.runs.some((each) => each.frames.length && Number.isFinite(each.total(each.last, "score_mean")));
    const score = (each, f, name) => (each.about.classifies ? KM.percent(each.total(f, name)) : KM.number(each.total(f, name)));
    const classes = run && run.about.classifies;
    const cells = [
      ["Samples per agent", (r, f) => KM.count(r.total(f, "samples")), (r, f) => `${r.about.mesh ? "poll" : "round"} ${KM.count(r.total(f, "round"))}`],
      ...(scored ? [[classes ? "Accuracy, mean" : "Error, mean", (r, f) => score(r, f, "score_mean"), (r, f) => `worst agent ${score(r, f, "score_worst")}`]] : []),
      [run && run.about.mesh ? "Loss" : "Objective", (r, f) => KM.number(r.total(f, "objective")), () => "sum over agents"],
      ["Disagreement", (r, f) => KM.number(r.total(f, "disagreement")), () => "sum over edges"],
      ["Model order", (r, f) => KM.number(r.total(f, "order_mean")), (r, f) => `largest ${KM.count(r.total(f, "order_max"))}`],
      ["Bytes per sample", (r, f) => KM.number(r.total(f, "bytes_per_sample")), (r, f) => (r.total(f, "penalty") > 0 ? `penalty ${KM.number(r.total(f, "penalty"))}` : "all agents")],
    ];
    const root = this.find("numbers");
    if (root.childElementCount !== cells.length || this.numbered !== this.runs.length) {
      this.numbered = this.runs.length;
      root.replaceChildren();
      this.cells = cells.map(([name]) => {
        const cell = KM.html("div", { class: "number" }, root);
        KM.html("div", { class: "name" }, cell, name);
        return this.runs.map((_, k) => ({ value: KM.html("div", { class: `value ${"ab"[k]}` }, cell), note: KM.html("div", { class: "note" }, cell) }));
      });
    }
    cells.forEach(([, value, note], n) => this.runs.forEach((each, k) => {
      const spot = this.cells[n][k];
      KM.write(spot.value, frames[k] ? (this.comparing ? `${"AB"[k]} ` : "") + value(each, frames[k]) : "–");
      KM.write(spot.note, frames[k] ? note(each, frames[k]) : "");
    }));
  }

  // In words, for those who listen.
  tell(samples, frames) {
    const parts = this.runs.map((run, k) => {
      const f = frames[k];
      if (!f) return `${run.about.title}: nothing yet.`;
      const score = run.total(f, "score_mean");
      const how = Number.isFinite(score) ? (run.about.classifies ? `accuracy ${KM.percent(score)}, worst agent ${KM.percent(run.total(f, "score_worst"))}, ` : `error ${KM.number(score)}, `) : "";
      return `${this.comparing ? `${run.about.title}: ` : ""}after ${KM.count(run.total(f, "samples"))} samples per agent ${how}disagreement ${KM.number(run.total(f, "disagreement"))}, model order ${KM.number(run.total(f, "order_mean"))}.`;
    });
    this.find("summary").textContent = parts.join(" ");
    this.figures.networks.forEach((figure) => figure.label(`The network of ${figure.run.about.title}: ${figure.run.agents} agents and ${figure.run.edges} edges. ${parts[figure.run.index]} The table of agents has the numbers of each.`));
    this.figures.curves.forEach((figure) => figure.label());
  }

  neighbor(samples, count) {
    const run = this.runs.reduce((best, each) => (each.frames.length > best.frames.length ? each : best), this.runs[0]);
    if (!run || !run.frames.length) return samples;
    const at = Math.min(Math.max(run.at(samples) + count, 0), run.frames.length - 1);
    return run.total(run.frames[at], "samples");
  }

  choose(agent) {
    const agents = this.runs[0]?.agents || 0;
    if (!agents) return;
    this.agent = (agent + agents) % agents;
    this.find("agent").value = this.agent;
    this.figures.networks.forEach((figure) => { figure.selected = this.agent; });
    this.wish(this.clock.samples, false);
  }

  recolor() {
    this.figures.networks.forEach((figure) => { figure.colorBy = this.find("color-by").value; figure.build(); figure.redraw(); });
  }

  async drawCurves() {
    await KM.plotly;
    for (const figure of this.figures.curves) await figure.draw();
    this.painted = performance.now();
  }

  redrawCurvesSoon() {
    if (this.redrawing) return;
    this.redrawing = true;
    setTimeout(async () => { await this.drawCurves(); this.redrawing = false; }, 500);
  }

  switchTheme() {
    const dark = this.theme ? this.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    this.theme = dark ? "light" : "dark";
    document.documentElement.dataset.theme = this.theme;
    this.repaint();
  }

  repaint() {
    for (const figure of [...this.figures.networks, ...this.figures.functions]) { figure.build(); figure.redraw(); }
    this.drawCurves();
  }

  agentTable() {
    const root = this.find("agents-table");
    if (!this.find("agents-details").open || performance.now() - (this.tabled || 0) < 250) return;
    this.tabled = performance.now();
    root.replaceChildren();
    this.figures.networks.forEach((figure) => {
      const { run, frame } = figure;
      if (!frame) return;
      const columns = ["samples", "order", "score", "loss", "bytes", "refused"];
      const rows = run.about.names.map((name, i) => [name, ["learning", "away", "ended"][run.agent(frame, i, "state")] || "", ...columns.map((column) => KM.number(run.agent(frame, i, column), 4))]);
      KM.table(root, ["agent", "state", "samples", "order", run.about.classifies ? "accuracy" : "error", "loss", "bytes sent", "refused"], rows, run.about.title, 2);
    });
  }

  about() {
    const root = this.find("about");
    root.replaceChildren();
    this.runs.forEach((run, k) => {
      const { about } = run, part = KM.html("div", { class: "about-run" }, root);
      KM.html("h2", {}, part, this.comparing ? `About ${"AB"[k]}: ${about.title}` : "About this run");
      about.paragraphs.forEach((text) => KM.html("p", {}, part, text));
      const section = (title, fill) => { const details = KM.html("details", {}, part); KM.html("summary", {}, details, title); fill(KM.html("div", { class: "scroll" }, details)); };
      if (about.summary.length) section("Summary", (body) => KM.table(body, ["quantity", "value"], about.summary.filter(([name]) => name !== "remark"), "summary"));
      if (about.config.length) section("Settings (config.json repeats the run)", (body) => KM.table(body, ["setting", "value"], about.config, "settings"));
      for (const [name, rows] of Object.entries(about.tables)) section(`Table: ${name}`, (body) => KM.table(body, rows[0], rows.slice(1).map((row) => row.map(KM.tidy)), name));
      if (about.marks.length) section("What happened when", (body) => KM.table(body, ["samples", "what"], about.marks.map((mark) => [KM.count(mark.samples), mark.text]), "marks"));
      about.figures.forEach((name) => {
        const source = this.provider.image(k, name);
        if (source) section(`Figure: ${name}`, (body) => KM.html("img", { src: source, alt: name.replace(/\.png$/, ""), loading: "lazy" }, body));
      });
      if (!run.agents) part.querySelectorAll("details").forEach((details) => { details.open = true; });
      if (part.childElementCount === 1) part.remove();
    });
    this.find("about-panel").hidden = !root.childElementCount;
  }
};

KM.tidy = (text) => (/^-?\d*\.\d{5,}(e-?\d+)?$/.test(text) ? String(Number(Number(text).toPrecision(4))) : text);
KM.table = (parent, titles, rows, caption, numeric = 99) => {
  const table = KM.html("table", {}, parent);
  KM.html("caption", { class: "hidden-text" }, table, caption);
  const head = KM.html("tr", {}, KM.html("thead", {}, table));
  titles.forEach((title, n) => KM.html("th", { scope: "col", class: n >= numeric ? "num" : "" }, head, title));
  const body = KM.html("tbody", {}, table);
  rows.forEach((row) => { const line = KM.html("tr", {}, body); row.forEach((cell, n) => KM.html("td", { class: n >= numeric ? "num" : "" }, line, cell)); });
};

(() => {
  const embedded = document.getElementById("embedded");
  KM.app = new KM.App(embedded ? new KM.EmbeddedProvider(JSON.parse(embedded.textContent)) : new KM.ServerProvider());
  KM.app.start();
})();
