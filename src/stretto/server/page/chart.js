// A chart of lines on a canvas: time from left to right, values from 0 upwards. A value that is null leaves a gap.
const LEFT = 48, BOTTOM = 18, TOP = 6, FONT = '12px ui-sans-serif, system-ui, sans-serif', STEPS = [1, 2, 5, 10];
const DOT = 3; // a value between gaps is as wide
const clock = time => new Date(1000 * time).toLocaleTimeString('en-GB');
const word = value => Number(value.toPrecision(3)).toLocaleString('en');

function color(element, name) { // of a CSS variable, as a canvas takes it
  element.style.color = `var(--${name})`;
  return getComputedStyle(element).color;
}

function ticks(most) { // about three, at round numbers
  const size = 10 ** Math.floor(Math.log10(most / 3)), step = size * STEPS.find(factor => 3.5 * factor * size >= most);
  return Array.from({length: Math.floor(most / step) + 1}, (_, i) => i * step);
}

// `times` are in seconds, `lines` arrays of as many values, `colors` names of CSS variables.
export function draw(canvas, times, lines, colors, span) {
  const {clientWidth: width, clientHeight: height} = canvas, ratio = devicePixelRatio, brush = canvas.getContext('2d');
  Object.assign(canvas, {width: ratio * width, height: ratio * height});
  brush.scale(ratio, ratio);
  const last = times.at(-1) ?? 0, most = 1.05 * lines.flat().reduce((one, two) => Math.max(one, two ?? 0), 0) || 1;
  const x = time => LEFT + (width - LEFT) * (1 - (last - time) / span), y = value => TOP + (height - TOP - BOTTOM) * (1 - value / most);
  const path = (name, points) => {
    brush.strokeStyle = color(canvas, name);
    brush.beginPath();
    points.forEach(([right, up], i) => {
      if (up === null) return;
      if ((points[i - 1]?.[1] ?? null) === null) brush.moveTo(right - DOT, up);
      brush.lineTo(right, up);
    });
    brush.stroke();
  };
  Object.assign(brush, {font: FONT, fillStyle: color(canvas, 'soft'), textAlign: 'right', textBaseline: 'middle'});
  for (const value of ticks(most)) {
    path('line', [[LEFT, y(value)], [width, y(value)]]);
    brush.fillText(word(value), LEFT - 6, y(value));
  }
  brush.textAlign = 'center';
  for (const part of last ? [.2, .5, .8] : []) brush.fillText(clock(last - span * (1 - part)), LEFT + part * (width - LEFT), height - 7);
  brush.lineWidth = 1.5;
  lines.forEach((line, i) => path(colors[i], line.map((value, j) => [x(times[j]), value === null ? null : y(value)])));
}
