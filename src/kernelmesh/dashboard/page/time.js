"use strict";
// Time: play, pause, scrub, follow a run in progress.
KM.Clock = class {
  constructor(onChange) {
    this.onChange = onChange;
    this.samples = 0;
    this.end = 1;
    this.playing = false;
    this.following = false;
    this.neighbor = (samples) => samples;
    const find = (id) => document.getElementById(id);
    [this.button, this.slider, this.output, this.speed, this.live, this.ticks] = ["play", "scrub", "clock", "speed", "live", "marks"].map(find);
    this.button.addEventListener("click", () => this.toggle());
    this.slider.addEventListener("input", () => { const wanted = Number(this.slider.value); this.pause(); this.set(wanted); });
    this.live.addEventListener("click", () => this.follow());
    document.addEventListener("keydown", (event) => this.key(event));
    this.render();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const where = event.target, typing = where.matches && where.matches("select, input:not([type=range]), textarea");
    const pressing = where.matches && where.matches("button, summary, a");
    if (event.key === " " && !typing && !pressing) this.toggle();
    else if (event.key === "ArrowRight" && !typing) this.step(event.shiftKey ? 10 : 1);
    else if (event.key === "ArrowLeft" && !typing) this.step(event.shiftKey ? -10 : -1);
    else if (event.key === "Home" && !typing) { this.pause(); this.set(0); }
    else if (event.key === "End" && !typing) { this.pause(); this.set(this.end); }
    else return;
    event.preventDefault();
  }

  step(count) { this.pause(); this.set(this.neighbor(this.samples, count)); }

  bounds(end, live, marks) {
    this.empty = !end;
    this.end = Math.max(end, 1);
    this.slider.max = this.end;
    this.live.hidden = !live;
    this.ticks.replaceChildren();
    for (const mark of marks) {
      const tick = KM.html("i", { class: mark.kind, title: mark.text }, this.ticks);
      tick.style.left = `${(100 * mark.samples) / this.end}%`;
    }
    if (this.following) this.set(this.end); else this.render();
  }

  set(samples) {
    this.samples = Math.min(Math.max(samples, 0), this.end);
    this.render();
    this.onChange(this.samples, this.playing);
  }

  follow() { this.playing = false; this.following = true; this.set(this.end); }
  pause() { this.playing = this.following = false; this.render(); }

  toggle() {
    if (this.playing || this.following) { this.pause(); return this.set(this.samples); }
    this.playing = true;
    if (this.samples >= this.end) this.samples = 0;
    this.before = performance.now();
    this.render();
    requestAnimationFrame((now) => this.advance(now));
  }

  // At 1× a whole run takes a minute.
  advance(now) {
    if (!this.playing) return;
    const passed = Math.min(now - this.before, 200) / 1000;
    this.before = now;
    this.set(this.samples + (this.end * passed * Number(this.speed.value)) / 60);
    if (this.samples >= this.end) { this.pause(); this.onChange(this.samples, false); } else requestAnimationFrame((next) => this.advance(next));
  }

  render() {
    this.slider.value = this.samples;
    const shown = KM.count(this.neighbor(this.samples, 0)); // what was recorded there
    this.slider.setAttribute("aria-valuetext", `${shown} of ${KM.count(this.end)} samples per agent`);
    this.output.replaceChildren(this.empty ? "No samples yet" : `${shown} samples`);
    if (!this.empty) KM.html("small", {}, this.output, `of ${KM.count(this.end)}`);
    const running = this.playing || this.following;
    if (running !== this.drawn) {
      this.button.setAttribute("aria-label", running ? "Pause" : "Play");
      this.button.querySelector("path").setAttribute("d", running ? "M5 3h4v14H5zM11 3h4v14h-4z" : "M5 3l12 7-12 7z");
      this.drawn = running;
    }
    this.live.setAttribute("aria-pressed", String(this.following));
  }
};
