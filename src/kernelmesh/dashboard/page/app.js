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
    try { loaded = await this.provider.load(); } catch (error) { return this.banner(`Loading failed: ${error.message}`); }
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
      ["networks", some.length, "No agents recorded yet."], ["functions", this.figures.functions.length, this.noFunctions()],
      ["curves", shown.length, "No measurements yet."]]) if (!there) KM.html("p", { class: "empty" }, find(id), why);
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

  // Why there is no function to draw.
  noFunctions() {
    if (this.runs.some((run) => run.about.mesh && !run.about.has_functions)) return "Functions of agents on a network are drawn for two-dimensional inputs only.";
    return this.isLive || !this.runs.some((run) => run.frames.length) ? "No functions recorded yet." : "This run recorded no functions.";
  }

  bounds() { this.clock.bounds(this.end, this.isLive, this.runs.flatMap((run) => run.about.marks)); }

  titles() {
    const { find } = this, about = this.runs.map((run) => run.about);
    const value = (rows, name) => (rows.find(([key]) => key === name) || [])[1];
    const title = about.map((each) => each.title).join(" and ");
    find("title").textContent = title || "kernelmesh";
    document.title = `${title} – kernelmesh`;
    const facts = about.map((each, k) => {
      // the summary tells what was used where settings leave it open; networks of one run may differ in protocol and learner
      const facts = each.part ? ["partition"] : ["protocol", "learner", "partition"];
      const named = [each.part && `network ${each.part}`, ...facts.map((name) => value(each.summary, name) || value(each.config, name))].filter(Boolean);
      if (value(each.config, "seed") !== undefined) named.push(`seed ${value(each.config, "seed")}`);
      const agents = each.names.length ? [each.names.length === 1 ? "1 agent" : `${each.names.length} agents`] : [];
      return `${this.comparing ? `${"AB"[k]}: ` : ""}${[...agents, ...named].join(", ")}`;
    });
    find("subtitle").textContent = facts.join("  ·  ");
    this.curvesKey();
  }

  // What the lines and marks of the curves stand for.
  curvesKey() {
    const key = this.find("curves-key"), kinds = new Set(this.runs.flatMap((run) => run.about.marks.map((mark) => mark.kind)));
    const item = (kind, text, color) => {
      const line = KM.html("span", { class: "key" }, key);
      KM.html("i", { class: kind }, line);
      line.append(text);
      if (color) line.style.color = color;
    };
    key.replaceChildren();
    if (!this.runs.some((run) => run.frames.length)) return;
    if (this.comparing) this.runs.forEach((run, k) => item(k ? "dashed" : "strong", `${"AB"[k]}: ${run.about.title}`, `var(--${k ? "second" : "accent"})`));
    else item("strong", "mean");
    if (this.runs.some((run) => run.agents > 1)) item("faint", "each agent");
    if (kinds.has("penalty")) item("doubled", "penalty doubled");
    if (kinds.has("away") || kinds.has("back")) item("away", "agent away or back");
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
    const words = { running: "Live", complete: "Finished", interrupted: "Interrupted", diverged: "Diverged", waiting: "Waiting", unreadable: "Unreadable" };
    const worst = ["unreadable", "diverged", "waiting", "interrupted", "running", "complete"].find((status) => abouts.some((each) => each.status === status));
    const pill = this.find("status");
    pill.textContent = words[worst] || "Finished";
    pill.dataset.status = worst;
    const messages = abouts.filter((each) => each.message && (each.status !== "complete" || !each.live)).map((each) => (this.comparing ? `${each.title}: ` : "") + each.message);
    this.banner(messages.join(" "));
    const bad = ["unreadable", "diverged"].includes(worst) || (worst === "waiting" && abouts.some((each) => each.mesh));
    this.find("banner").dataset.kind = bad ? "bad" : "info";
    this.find("live").hidden = !this.isLive;
    this.remarks(abouts.flatMap((each) => each.remarks || []));
  }

  // What single agents have to say: a list to open, as it may be long and change all the time.
  remarks(texts) {
    const root = this.find("remarks");
    root.hidden = !texts.length;
    KM.write(root.firstElementChild, texts.length === 1 ? "1 remark" : `${texts.length} remarks`);
    const list = root.lastElementChild;
    while (list.childElementCount > texts.length) list.lastChild.remove();
    while (list.childElementCount < texts.length) KM.html("li", {}, list);
    texts.forEach((text, n) => KM.write(list.children[n], text));
  }

  banner(text) {
    const banner = this.find("banner");
    banner.hidden = !text;
    if (this.told === text) return;
    this.told = text;
    banner.replaceChildren(...text.split("`").map((part, n) => (n % 2 ? KM.html("code", {}, null, part) : part)));
  }

  lost() {
    const pill = this.find("status");
    pill.textContent = "Disconnected";
    pill.dataset.status = "lost";
    this.banner("The dashboard no longer responds. It may have been stopped. The page keeps what it shows, and reconnects when the dashboard is back.");
    this.find("banner").dataset.kind = "bad";
  }

  async hear(message) {
    const run = this.runs[message.run];
    if (!run || message.generation !== run.about.generation || message.newest > run.newest + (message.frames ? Infinity : 0)) return this.reload();
    const ended = run.about.status !== message.status;
    Object.assign(run.about, { status: message.status, message: message.message, remarks: message.remarks });
    if (message.marks && JSON.stringify(message.marks) !== JSON.stringify(run.about.marks)) {
      run.about.marks = message.marks;
      this.curvesKey();
      this.fillMarks(run);
    }
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
    const classes = run && run.about.classifies, mesh = run && run.about.mesh;
    const overAgents = (each, f, name) => each.total(f, name) / (mesh ? Math.max(each.agents, 1) : 1);
    const cells = [
      ["Samples per agent", (r, f) => KM.count(r.total(f, "samples")), (r, f) => `${r.about.mesh ? "poll" : "round"} ${KM.count(r.total(f, "round"))}`],
      ...(scored ? [[classes ? "Accuracy, mean" : "Error, mean", (r, f) => score(r, f, "score_mean"), (r, f) => `worst agent ${score(r, f, "score_worst")}`]] : []),
      [mesh ? "Loss" : "Objective", (r, f) => KM.number(overAgents(r, f, "objective")), () => (mesh ? "mean over agents" : "sum over agents")],
      ["Disagreement", (r, f) => KM.number(overAgents(r, f, "disagreement")), () => (mesh ? "mean over agents" : "sum over agents")],
      ["Model order", (r, f) => KM.number(r.total(f, "order_mean")), (r, f) => `largest ${KM.count(r.total(f, "order_max"))}`],
      ["Bytes per sample", (r, f) => KM.number(r.total(f, "bytes_per_sample")), (r, f) => (r.total(f, "penalty") > 0 ? `penalty ${KM.number(r.total(f, "penalty"))}` : "mean over agents")],
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
      if (!f) return `${run.about.title}: no measurements yet.`;
      const score = run.total(f, "score_mean");
      const how = Number.isFinite(score) ? (run.about.classifies ? `accuracy ${KM.percent(score)}, worst agent ${KM.percent(run.total(f, "score_worst"))}, ` : `error ${KM.number(score)}, `) : "";
      return `${this.comparing ? `${run.about.title}, after` : "After"} ${KM.count(run.total(f, "samples"))} samples per agent: ${how}disagreement ${KM.number(run.total(f, "disagreement"))}, model order ${KM.number(run.total(f, "order_mean"))}.`;
    });
    this.find("summary").textContent = parts.join(" ");
    this.figures.networks.forEach((figure) => figure.label(`The network of ${figure.run.about.title}: ${figure.run.agents} agents and ${figure.run.edges} edges. ${parts[figure.run.index]} The table of agents lists every agent.`));
    this.figures.curves.forEach((figure) => figure.label());
  }

  neighbor(samples, count) {
    const run = this.runs.reduce((best, each) => (each.frames.length > best.frames.length ? each : best), this.runs[0]);
    if (!run || !run.frames.length) return samples;
    const here = run.at(samples), step = Math.sign(count), now = run.total(run.frames[here], "samples");
    let at = Math.min(Math.max(here + count, 0), run.frames.length - 1);
    while (step && run.frames[at + step] && run.total(run.frames[at], "samples") === now) at += step; // past rounds without samples
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
    this.find("curves").dataset.count = this.figures.curves.filter((figure) => figure.known).length;
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
    clearTimeout(this.tableLater);
    if (!this.find("agents-details").open) return;
    const wait = 250 - (performance.now() - (this.tabled || -250));
    if (wait > 0) { this.tableLater = setTimeout(() => this.agentTable(), wait); return; } // a few times a second; the newest wish counts
    this.tabled = performance.now();
    root.replaceChildren();
    this.figures.networks.forEach((figure) => {
      const { run, frame } = figure;
      if (!frame) return;
      const scored = run.about.names.some((_, i) => Number.isFinite(run.agent(frame, i, "score")));
      const columns = ["samples", "order", ...(scored ? ["score"] : []), "loss", "bytes", "refused"];
      const titles = { order: "model order", score: run.about.classifies ? "accuracy" : "error", bytes: "bytes sent" };
      const show = { score: (v) => (run.about.classifies ? KM.percent(v) : KM.number(v)), loss: (v) => KM.number(v), bytes: (v) => KM.bytes(v) };
      const rows = run.about.names.map((name, i) => [name, ["learning", "away", "ended"][run.agent(frame, i, "state")] || "", ...columns.map((column) => (show[column] || KM.count)(run.agent(frame, i, column)))]);
      if (this.comparing) KM.html("h3", {}, root, `${"AB"[run.index]}: ${run.about.title}`);
      KM.table(root, ["agent", "state", ...columns.map((column) => titles[column] || column)], rows, run.about.title, 2);
    });
  }

  about() {
    const root = this.find("about");
    root.replaceChildren();
    this.runs.forEach((run, k) => {
      const { about } = run, part = KM.html("div", { class: "about-run" }, root);
      KM.html("h2", {}, part, this.comparing ? `About ${"AB"[k]}: ${about.title}` : about.mesh ? "About this mesh" : "About this run");
      about.paragraphs.forEach((text) => KM.html("p", {}, part, text));
      const section = (title, fill) => {
        const details = KM.html("details", {}, part);
        KM.html("summary", {}, details, title);
        const body = KM.html("div", { class: "scroll", tabindex: 0 }, details);
        if (fill) fill(body);
        return body;
      };
      if (about.summary.length) section("Summary", (body) => KM.table(body, ["quantity", "value"], about.summary.filter(([name]) => name !== "remark"), "summary"));
      if (about.config.length) section(about.mesh ? "Settings" : "Settings (config.json)", (body) => KM.table(body, ["setting", "value"], about.config, "settings"));
      for (const [name, rows] of Object.entries(about.tables)) section(`Table: ${name}`, (body) => KM.table(body, rows[0], rows.slice(1).map((row) => row.map(KM.tidy)), name));
      run.marksBody = section("Events");
      this.fillMarks(run);
      about.figures.forEach((name) => {
        const source = this.provider.image(k, name);
        if (source) section(`Figure: ${name}`, (body) => KM.html("img", { src: source, alt: name.replace(/\.png$/, ""), loading: "lazy" }, body));
      });
      if (!run.agents) part.querySelectorAll("details").forEach((details) => { details.open = true; });
      if (![...part.children].some((child, n) => n && !child.hidden)) part.remove();
    });
    this.find("about-panel").hidden = !root.childElementCount;
  }

  fillMarks(run) {
    if (!run.marksBody) return;
    const { marks } = run.about;
    run.marksBody.parentElement.hidden = !marks.length;
    run.marksBody.replaceChildren();
    KM.table(run.marksBody, ["samples", "event"], marks.map((mark) => [KM.count(mark.samples), mark.text]), "events");
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
