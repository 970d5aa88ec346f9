/* The labels of a page's diagrams with a contrast below 4.5 to their background. */
const parse = (colour) => {
  const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
  return { rgb: [r, g, b], a };
};
const over = (top, opacity, below) => below.map((channel, i) => opacity * top[i] + (1 - opacity) * channel);
const luminance = (rgb) => {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
};
const paper = parse(getComputedStyle(document.body).backgroundColor).rgb;

function ground(label, diagram) {
  const at = label.getBoundingClientRect();
  const [x, y] = [(at.left + at.right) / 2, (at.top + at.bottom) / 2];
  let colour = paper;
  for (const rect of diagram.querySelectorAll("rect")) {
    const area = rect.getBoundingClientRect();
    const style = getComputedStyle(rect);
    if (style.fill === "none" || x < area.left || x > area.right || y < area.top || y > area.bottom) continue;
    const fill = parse(style.fill);
    colour = over(fill.rgb, fill.a * Number(style.fillOpacity), colour);
  }
  return colour;
}

return [...document.querySelectorAll(".diagram")].flatMap((diagram) =>
  [...diagram.querySelectorAll("text")].map((label) => {
    const below = ground(label, diagram);
    const fill = parse(getComputedStyle(label).fill);
    return [label.textContent, contrast(over(fill.rgb, fill.a, below), below)];
  })
);
