"use strict";
// Runs as the page holds them: bounded tables of numbers, from a server or from inside a report.
const KM = {};

KM.floats = (text) => {
  const raw = atob(text || "");
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Float32Array(bytes.buffer);
};

KM.whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 }); // made once, because that takes a while
KM.number = (value, digits = 3) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return KM.scientific(value);
  return size >= 1000 ? KM.whole.format(value) : String(Number(value.toPrecision(digits)));
};
// 2.5 × 10⁻⁴
KM.scientific = (value) => {
  const [mantissa, exponent] = value.toExponential(1).split("e");
  return `${mantissa} × 10${[...String(Number(exponent))].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("")}`;
};
KM.percent = (value, digits = 1) => (Number.isFinite(value) ? `${(100 * value).toFixed(digits)}%` : "–");
KM.count = (value) => KM.whole.format(value);
KM.bytes = (value) => {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= size) return `${KM.number(value / size)} ${unit}`;
  return `${KM.number(value)} B`;
};

KM.csv = (rows) =>
  rows.map((row) => row.map((cell) => {
    const text = cell === null || cell === undefined || (typeof cell === "number" && !Number.isFinite(cell)) ? "" : String(cell);
    return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  }).join(",")).join("\r\n") + "\r\n";

KM.Run = class {
  constructor(index, about, table) {
    this.index = index;
    this.load(about, table);
  }

  load(about, table) {
    this.about = about;
    this.agents = about.names.length;
    this.edges = about.edges.length;
    const positions = (names) => Object.fromEntries(names.map((name, i) => [name, i]));
    this.T = positions(about.columns.totals);
    this.A = positions(about.columns.agents);
    this.E = positions(about.columns.edges);
    this.frames = [];
    this.gap = 0;
    this.ranges = KM.emptyRanges();
    this.append(table);
  }

  // What colors and widths stand for. The worst tenth of all values shares one color, so that the end of a run shows differences.
  measureRanges() {
    const ranges = KM.emptyRanges(), step = this.about.columns.agents.length;
    const sample = this.frames.filter((_, n) => n % Math.ceil(this.frames.length / 60) === 0 || n === this.frames.length - 1);
    const values = { loss: [], score: [] };
    for (const frame of sample) {
      for (let i = 0; i < this.agents; i++) {
        ranges.order.add(frame.agents[i * step + this.A.order]);
        for (const name of ["loss", "score"]) if (Number.isFinite(frame.agents[i * step + this.A[name]])) values[name].push(frame.agents[i * step + this.A[name]]);
      }
      for (let n = 0; n < this.edges; n++) { ranges.disagreement.add(frame.edges[2 * n]); ranges.bytes.add(frame.edges[2 * n + 1]); }
    }
    for (const name of ["loss", "score"]) {
      const sorted = values[name].sort((a, b) => a - b), tenth = Math.floor(0.1 * sorted.length), better = name === "score" && this.about.classifies;
      if (sorted.length) [sorted[better ? tenth : 0], sorted[sorted.length - 1 - (better ? 0 : tenth)]].forEach((value) => ranges[name].add(value));
      if (better) ranges[name].add(ranges[name].high - 0.02); // differences below a percentage point or two deserve no contrast
    }
    return ranges;
  }

  // The newest frames; whenever there are too many, every second one goes, so that memory stays the same for ever.
  append(table) {
    const [totals, agents, edges] = [KM.floats(table.totals), KM.floats(table.agents), KM.floats(table.edges)];
    const [t, a, e] = [this.about.columns.totals.length, this.agents * this.about.columns.agents.length, this.edges * 2];
    for (let n = 0; n < table.count; n++) {
      const frame = { totals: totals.slice(n * t, n * t + t), agents: agents.slice(n * a, n * a + a), edges: edges.slice(n * e, n * e + e) };
      const last = this.frames.length - 1, samples = (at) => this.frames[at].totals[this.T.samples];
      if (last >= 0 && frame.totals[0] <= this.frames[last].totals[0]) continue;
      // while nobody learns, the first and the newest frame tell everything
      if (last >= 1 && samples(last) === frame.totals[this.T.samples] && samples(last - 1) === samples(last)) this.frames.pop();
      else if (last >= 1 && this.frames[last].totals[0] - this.frames[last - 1].totals[0] < this.gap) this.frames.pop();
      this.frames.push(frame);
    }
    if (this.frames.length > this.about.limit) {
      const newest = this.frames.length - 1;
      this.frames = this.frames.filter((_, n) => n % 2 === 0 || n === newest);
      this.gap = 0.9 * (this.last.totals[0] - this.frames[0].totals[0]) / (this.frames.length - 1);
    }
    if (this.frames.length) this.own = this.measureRanges();
  }

  get last() { return this.frames[this.frames.length - 1]; }
  get newest() { return this.frames.length ? this.last.totals[0] : 0; }
  get samples() { return this.frames.length ? this.last.totals[this.T.samples] : 0; }
  total(frame, name) { return frame.totals[this.T[name]]; }
  agent(frame, i, name) { return frame.agents[i * this.about.columns.agents.length + this.A[name]]; }

  // The number of the newest frame up to so many samples.
  at(samples) {
    let low = 0, high = this.frames.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.frames[middle].totals[this.T.samples] <= samples) low = middle; else high = middle - 1;
    }
    return low;
  }

  // Each agent's share of the disagreement: the sum over its edges; their mean where agents report means.
  agentDisagreements(frame) {
    const out = new Float64Array(this.agents), degrees = new Float64Array(this.agents);
    this.about.edges.forEach(([i, j], n) => [i, j].forEach((end) => { out[end] += frame.edges[2 * n]; degrees[end] += 1; }));
    return this.about.mesh ? out.map((sum, i) => sum / Math.max(degrees[i], 1)) : out;
  }
};

KM.emptyRanges = () => ({ loss: KM.range(), score: KM.range(), order: KM.range(), disagreement: KM.range(true), bytes: KM.range() });

// Runs that are compared share their scales.
KM.shareRanges = (runs) => {
  const shared = KM.emptyRanges();
  for (const run of runs) for (const name of Object.keys(shared)) for (const end of ["low", "high"]) shared[name].add(run.own ? run.own[name][end] : NaN);
  const key = JSON.stringify(shared, (_, value) => (typeof value === "number" ? Number(value.toPrecision(2)) : value));
  for (const run of runs) { run.ranges = shared; run.scale = key; }
};

KM.range = (positive = false) => ({
  low: Infinity, high: -Infinity,
  add(value) {
    if (!Number.isFinite(value) || (positive && value <= 0)) return;
    if (value < this.low) this.low = value;
    if (value > this.high) this.high = value;
  },
  share(value) { return this.high > this.low ? Math.min(Math.max((value - this.low) / (this.high - this.low), 0), 1) : 0.5; },
  logShare(value) {
    const low = Math.log(Math.max(this.low, this.high * 1e-5)), high = Math.log(this.high);
    return value > 0 && high > low ? Math.min(Math.max((Math.log(value) - low) / (high - low), 0), 1) : 0;
  },
});

// Plotly is large: it is read while the network is drawn already.
KM.plotly = new Promise((done) => {
  const script = document.getElementById("plotly");
  if (!script || typeof Plotly !== "undefined") done(); else script.addEventListener("load", done);
});

KM.ask = async (path) => {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
};

// A server, with its stream of events.
KM.ServerProvider = class {
  get fixed() { return false; }
  async load() {
    const abouts = await KM.ask("api/runs");
    return Promise.all(abouts.map(async (about, k) => ({ about, frames: await KM.ask(`api/runs/${k}/frames`) })));
  }
  async function(k, agent, round) {
    try { return await KM.ask(`api/runs/${k}/function?agent=${agent}&round=${round}`); } catch (error) { return { problem: error.message }; }
  }
  image(k, name) { return `api/runs/${k}/figures/${encodeURIComponent(name)}`; }
  animation(k) { return `api/runs/${k}/animation.gif`; }
  listen(onMessage, onLost, onBack) {
    let lost = false;
    const connect = () => {
      const events = new EventSource("api/events");
      events.onmessage = (event) => onMessage(JSON.parse(event.data));
      events.onopen = () => { if (lost) { lost = false; onBack(); } };
      events.onerror = () => {
        if (!lost) { lost = true; onLost(); }
        if (events.readyState === EventSource.CLOSED) setTimeout(connect, 2000); // refused: the browser itself does not try again
      };
    };
    connect();
  }
};

// A report, which holds everything itself.
KM.EmbeddedProvider = class {
  constructor(data) { this.data = data; }
  get fixed() { return true; }
  async load() { return this.data; }
  async function(k, agent, round) {
    let best = null;
    for (const each of this.data[k].functions) {
      if (each && each.agent === agent && (each.round <= round || best === null)) best = each;
    }
    return best || { problem: "The report does not contain this function." };
  }
  image(k, name) { return this.data[k].images[name]; }
  animation() { return null; }
  listen() {}
};
