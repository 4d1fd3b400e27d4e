// Cells as dots on a canvas. Dots are copied into a buffer of pixels, and only those whose look has changed.
import {CHANGED, DIM, FREED, IMAGE, LIT, MARKS, SHARE, STACKED, STATES} from './table.js';

const LARGEST = 14, SMALLEST = 3, NONE = 65535;

export class CellMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d');
    this.flash = new Uint16Array(0); // CHANGED or FREED for as long as a cell is highlighted
    this.readColours();
  }

  // The theme's colours, once for each theme.
  readColours() {
    const one = document.createElement('canvas').getContext('2d', {willReadFrequently: true}), {style} = this.canvas;
    const names = [...[...STATES.slice(1), 'image'].map(name => `cell-${name}`), 'line', 'bad', 'ink', 'card'];
    this.colours = Object.fromEntries(names.map(name => {
      style.color = `var(--${name})`;
      one.fillStyle = getComputedStyle(this.canvas).color;
      one.fillRect(0, 0, 1, 1);
      return [name, one.getImageData(0, 0, 1, 1).data];
    }));
    style.color = '';
    this.width = 0;
  }

  // As large as dots can be so that the map fits the window.
  layout(n) {
    const ratio = devicePixelRatio, width = Math.floor(this.canvas.clientWidth * ratio), most = Math.max(240, innerHeight * .65) * ratio;
    if (width === this.width && n === this.n && ratio === this.ratio) return;
    let size = Math.round(LARGEST * ratio), columns;
    do columns = Math.max(1, Math.floor(width / size)); while (Math.ceil(n / columns) * size > most && --size >= SMALLEST);
    size = Math.max(size, SMALLEST);
    Object.assign(this, {n, ratio, width, size, columns, sprites: new Map(), drawn: new Uint16Array(n).fill(NONE)});
    if (this.flash.length !== n) this.flash = new Uint16Array(n);
    const height = Math.max(1, Math.ceil(n / columns) * size);
    Object.assign(this.canvas, {width: Math.max(1, width), height});
    this.canvas.style.height = `${height / ratio}px`;
    this.image = this.context.createImageData(this.canvas.width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  // Draws what differs from the canvas; cells of a selected sequence are lit. Returns how many dots that were.
  paint(table, selected = null) {
    this.layout(table.n);
    const {n, size, columns, drawn, flash} = this, {looks, set} = table, lit = new Uint8Array(65536);
    for (const [number, ids] of table.sets) if (selected != null && ids.some(id => id == selected)) lit[number] = 1;
    let count = 0, from = n, to = -1;
    for (let i = 0; i < n; i++) {
      const look = looks[i] | flash[i] | (selected == null ? 0 : lit[set[i]] ? LIT : DIM);
      if (look === drawn[i]) continue;
      this.#dot(i, drawn[i] = look);
      count++;
      if (i < from) from = i;
      to = i;
    }
    const top = Math.floor(from / columns) * size, bottom = (Math.floor(to / columns) + 1) * size;
    if (count) this.context.putImageData(this.image, 0, 0, 0, top, this.canvas.width, bottom - top);
    return count;
  }

  #dot(i, look) {
    const {size, columns, pixels} = this, {width} = this.canvas;
    let sprite = this.sprites.get(look);
    if (!sprite) this.sprites.set(look, sprite = this.#sprite(look));
    let at = Math.floor(i / columns) * size * width + (i % columns) * size;
    for (let y = 0; y < size; y++, at += width) for (let x = 0; x < size; x++) pixels[at + x] = sprite[y * size + x];
  }

  // A square; hollow if shared, the more the hollower; cut in two if it is one of several at its position.
  #sprite(look) {
    const {size, colours} = this, sprite = new Uint32Array(size * size), side = size - Math.max(1, Math.round(size / 8));
    const state = look & 7, share = (look & 3 * SHARE) / SHARE, {card, ink} = colours;
    const name = look & FREED ? 'bad' : look & CHANGED ? 'ink' : look & IMAGE ? 'cell-image' : state ? `cell-${STATES[state]}` : 'line';
    let main = colours[name];
    if (share) main = mix(main, ink, .15 * share);
    const hole = mix(card, main, .3), rim = [side, .3, .2, .12][share] * side;
    for (let y = 0; y < side; y++) for (let x = 0; x < side; x++) {
      const edge = Math.min(x, y, side - 1 - x, side - 1 - y), corner = side > 5 && x % (side - 1) + y % (side - 1) === 0;
      if (corner || !(look & (MARKS | FREED | CHANGED)) && edge < side / 3 - .5) continue; // free: a small dot
      let colour = share && side > 4 && edge >= rim ? hole : main;
      if (look & STACKED && Math.abs(y - (side - 1) / 2) < side / 10 + .5) colour = card;
      if (look & LIT && edge === 0 && side > 3) colour = ink;
      if (look & DIM) colour = mix(colour, card, .75);
      sprite[y * size + x] = colour[0] | colour[1] << 8 | colour[2] << 16 | 255 << 24;
    }
    return sprite;
  }

  at(x, y) { // the cell at a place in CSS pixels
    const scale = this.ratio / this.size, column = Math.floor(x * scale), i = Math.floor(y * scale) * this.columns + column;
    return column >= 0 && column < this.columns && i >= 0 && i < this.n ? i : null;
  }

  place(i) { // its place, in CSS pixels
    const side = this.size / this.ratio, left = i % this.columns * side, top = Math.floor(i / this.columns) * side;
    return {left: `${left}px`, top: `${top}px`, width: `${side}px`, height: `${side}px`};
  }
}

const mix = (a, b, share) => [0, 1, 2].map(k => a[k] + (b[k] - a[k]) * share);
