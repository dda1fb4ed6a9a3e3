"use strict";
// Drawing: colors, vector graphics, and saving what was drawn.
KM.colors = () => {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "card", "ink", "soft", "line", "accent", "second", "edge-low", "edge-high", "dot", "ring", "bad", "focus"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
};

KM.rgb = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
KM.ramp = (stops) => {
  const colors = stops.map(KM.rgb);
  return (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (colors.length - 1);
    const low = Math.min(Math.floor(at), colors.length - 2);
    const mixed = colors[low].map((c, i) => Math.round(c + (colors[low + 1][i] - c) * (at - low)));
    return `rgb(${mixed.join(",")})`;
  };
};
// The same in 64 steps, each computed once: values that hardly change then change nothing on the screen.
KM.steps = (stops) => {
  const ramp = KM.ramp(stops), table = Array.from({ length: 64 }, (_, n) => ramp(n / 63));
  return (share) => table[Math.round(Math.min(Math.max(share, 0), 1) * 63)];
};
// Set an attribute only where it changes.
KM.put = (element, name, value) => {
  const known = element.known || (element.known = {});
  if (known[name] === value) return;
  known[name] = value;
  element.setAttribute(name, value);
};
KM.write = (element, text) => { if (element.textContent !== text) element.textContent = text; };

KM.svg = (name, attributes = {}, parent = null, text = null) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
};

KM.html = (name, attributes = {}, parent = null, text = null) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
};

// How much larger than usual the page's text is, which drawings follow.
KM.unit = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 15;

KM.FONT = 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

KM.download = (blob, name) => {
  const link = KM.html("a", { href: URL.createObjectURL(blob), download: name }, document.body);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

KM.fromDataUrl = (url) => {
  const [head, body] = [url.slice(5, url.indexOf(",")), url.slice(url.indexOf(",") + 1)];
  if (!head.includes("base64")) return new Blob([decodeURIComponent(body)], { type: head.split(";")[0] });
  return new Blob([Uint8Array.from(atob(body), (c) => c.charCodeAt(0))], { type: head.split(";")[0] });
};

// A copy that needs no style sheet: background, font and caption inside.
KM.HEAD = 30;
KM.standalone = (svg, caption) => {
  const copy = svg.cloneNode(true), colors = KM.colors();
  const { width } = svg.viewBox.baseVal, height = svg.viewBox.baseVal.height + KM.HEAD;
  const attributes = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 ${-KM.HEAD} ${width} ${height}`, "font-family": KM.FONT };
  for (const [key, value] of Object.entries(attributes)) copy.setAttribute(key, value);
  copy.insertBefore(KM.svg("text", { x: 6, y: -11, "font-size": 13, "font-weight": 600, fill: colors.ink }, null, caption), copy.firstChild);
  copy.insertBefore(KM.svg("rect", { y: -KM.HEAD, width, height, fill: colors.card }), copy.firstChild);
  return new XMLSerializer().serializeToString(copy);
};

KM.saveVector = (svg, caption, name) => KM.download(new Blob([KM.standalone(svg, caption)], { type: "image/svg+xml" }), `${name}.svg`);
KM.saveRaster = async (svg, caption, name) => {
  const { width } = svg.viewBox.baseVal, height = svg.viewBox.baseVal.height + KM.HEAD;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(KM.standalone(svg, caption))}`;
  await image.decode();
  const canvas = KM.html("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => KM.download(blob, `${name}.png`), "image/png");
};

// Calls when an element that is shown has another size.
KM.onResize = (element, react) => {
  const observer = new ResizeObserver(() => { if (element.isConnected && element.clientWidth) react(); });
  observer.observe(element);
  return observer;
};

// The head of a figure: a caption, and buttons that save it.
KM.figureHead = (parent, what, saves) => {
  const head = KM.html("div", { class: "figure-head" }, parent);
  const caption = KM.html("span", { class: "caption" }, head);
  const buttons = KM.html("span", { class: "saves" }, head);
  for (const [format, save] of Object.entries(saves)) {
    const button = KM.html("button", { type: "button", "aria-label": `Save ${what} as ${format}`, title: `Save as ${format}` }, buttons, format);
    button.addEventListener("click", save);
  }
  return caption;
};

// "Agent 3", but "agent-3" as it is.
KM.named = (name) => (/^agent/i.test(name) ? name : `Agent ${name}`);

KM.tip = (event, text) => {
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
};
