// Lines over time on a canvas: a grid at round numbers, the time of day below, gaps where values are missing.
const LEFT = 46, BOTTOM = 18, TOP = 6, TIMES = [10, 30, 60, 120, 300, 600], LABEL = 80;

export function colorOf(element, name) { // of a CSS variable, as a canvas takes it
  element.style.color = `var(--${name})`;
  const found = getComputedStyle(element).color;
  element.style.color = '';
  return found;
}

function roundStep(most) { // 1, 2 or 5 times a power of ten: three to seven lines
  const power = 10 ** Math.floor(Math.log10(most / 3)), times = most / 3 / power;
  return power * (times >= 5 ? 5 : times >= 2 ? 2 : 1);
}

export function plot(canvas, times, lines, colors) {
  const ratio = devicePixelRatio || 1, {clientWidth: width, clientHeight: height} = canvas, pen = canvas.getContext('2d');
  Object.assign(canvas, {width: width * ratio, height: height * ratio}); // which also clears it
  pen.scale(ratio, ratio);
  const from = times[0] ?? 0, span = Math.max(1, times.at(-1) - from || 0), most = 1.05 * Math.max(0, ...lines.flat()) || 1, step = roundStep(most);
  const x = time => LEFT + (time - from) / span * (width - LEFT - 2), y = value => height - BOTTOM - value / most * (height - BOTTOM - TOP);
  const line = (...points) => { pen.beginPath(); points.forEach(point => pen.lineTo(...point)); pen.stroke(); };
  Object.assign(pen, {font: '11px system-ui, sans-serif', fillStyle: colorOf(canvas, 'soft'), strokeStyle: colorOf(canvas, 'line'), textBaseline: 'middle', textAlign: 'right'});
  for (let value = 0; value <= most; value += step) {
    line([LEFT, y(value)], [width, y(value)]);
    pen.fillText(+value.toPrecision(6), LEFT - 6, y(value));
  }
  const every = TIMES.find(seconds => seconds * (width - LEFT) / span >= LABEL) ?? TIMES.at(-1);
  pen.textAlign = 'center';
  for (let time = Math.ceil(from / every) * every; time <= from + span; time += every) {
    line([x(time), TOP], [x(time), height - BOTTOM]);
    if (x(time) < width - LABEL / 3) pen.fillText(new Date(1000 * time).toLocaleTimeString('en-GB'), x(time), height - BOTTOM / 2);
  }
  Object.assign(pen, {lineWidth: 1.5, lineCap: 'round', lineJoin: 'round'});
  lines.forEach((values, i) => {
    pen.strokeStyle = colorOf(canvas, colors[i]);
    let part = [];
    [...values, null].forEach((value, k) => {
      if (value != null) part.push([x(times[k]), y(value)]);
      else if (part.length) { line(part[0], ...part); part = []; }
    });
  });
}
