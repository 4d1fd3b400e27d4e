// The table of cells as the server's frames tell it: typed arrays.
// A shared cell has the last of its sequences' states. `others` is a cell whose sequences are not told: another user's.
export const STATES = ['free', 'others', 'parked', 'held', 'pinned', 'running'];
// A cell's look is a number: its state, how many share it (one, two, up to four, more), and these marks.
export const SHARE = 8, IMAGE = 32, STACKED = 64, MARKS = 127, LIT = 128, DIM = 256, CHANGED = 512, FREED = 1024;
const MOST_POSITIONS = 1 << 24, OTHERS = 1;

export class Table {
  n = 0;
  looks = new Uint16Array(0);
  sets = new Map(); // number → ids of sequences
  sequences = {}; // id → {state, mine, n}

  // Takes a frame in, which is all of the table; tells what it has changed.
  apply(frame) {
    const {n, sequences} = this, sets = new Map(Object.entries(frame.sets).map(([number, ids]) => [+number, ids]));
    const changed = n === frame.n ? this.#changes(frame, sets) : null;
    if (!changed) this.looks = new Uint16Array(frame.n);
    Object.assign(this, frame, {sets});
    this.#look();
    const added = n ? Object.keys(this.sequences).filter(id => !(id in sequences)) : [];
    const gone = Object.keys(sequences).filter(id => !(id in this.sequences));
    return {changed, added, gone: gone.map(id => ({id, n: sequences[id].n}))};
  }

  // The cells that a frame changes. The same sets may have other numbers in it.
  #changes({n, positions, set, image}, sets) {
    const numbers = new Map([...this.sets].map(([number, ids]) => [`${ids}`, number])), changed = [];
    const before = new Int32Array(65536).map((_, i) => i);
    for (const [number, ids] of sets) before[number] = numbers.get(`${ids}`) ?? -1;
    for (let i = 0; i < n; i++) {
      if (before[set[i]] !== this.set[i] || positions[i] !== this.positions[i] || image[i] !== this.image[i]) changed.push(i);
    }
    return changed;
  }

  state(ids) { return ids.reduce((most, id) => Math.max(most, STATES.indexOf(this.sequences[id]?.state)), OTHERS); }
  idsOf(cell) { return this.sets.get(this.set[cell]) ?? []; }

  #look() {
    const bySet = new Uint16Array(65536).fill(OTHERS), {n, set, image, looks} = this;
    for (const [number, ids] of this.sets) {
      if (ids.length) bySet[number] = this.state(ids) | SHARE * (ids.length > 4 ? 3 : ids.length > 2 ? 2 : ids.length - 1);
    }
    const counts = this.counts = {free: 0, others: 0, parked: 0, held: 0, pinned: 0, running: 0, shared: 0, image: 0, stacked: 0};
    for (let i = 0; i < n; i++) looks[i] = set[i] && (bySet[set[i]] | image[i] * IMAGE);
    this.#stack();
    for (let i = 0; i < n; i++) {
      const look = looks[i];
      counts[STATES[look & 7]]++;
      if (look & 3 * SHARE) counts.shared++;
      if (look & IMAGE) counts.image++;
      if (look & STACKED) counts.stacked++;
    }
  }

  // Marks cells whose position another cell of one of their sequences has too: sets of a parallel run. Cells of an
  // image may share a position as well.
  #stack() {
    const {n, positions, set, image, looks} = this, rank = new Map(), ranks = [];
    for (const [number, ids] of this.sets) ranks[number] = ids.map(id => rank.get(id) ?? (rank.set(id, rank.size), rank.size - 1));
    let most = -1;
    for (let i = 0; i < n; i++) if (set[i] && positions[i] > most) most = positions[i];
    if (most >= MOST_POSITIONS) return;
    const head = new Int32Array(most + 1).fill(-1), next = new Int32Array(n), last = new Int32Array(rank.size).fill(-1);
    for (let i = n - 1; i >= 0; i--) if (positions[i] >= 0 && !image[i]) { next[i] = head[positions[i]]; head[positions[i]] = i; }
    for (let position = 0; position <= most; position++) {
      for (let i = head[position]; i >= 0; i = next[i]) {
        for (const r of ranks[set[i]] ?? []) { // `last` is the cell of a sequence that came before
          if (last[r] >= 0 && positions[last[r]] === position) { looks[i] |= STACKED; looks[last[r]] |= STACKED; }
          last[r] = i;
        }
      }
    }
  }

  // The older sequence that an added one shares the most cells with: it was forked from it, or from its prefix.
  parent(id) {
    const shared = new Map();
    for (let i = 0; i < this.n; i++) {
      const ids = this.set[i] ? this.idsOf(i) : [];
      if (ids.length < 2 || !ids.some(other => other == id)) continue;
      for (const other of ids) if (+other < +id) shared.set(other, (shared.get(other) ?? 0) + 1);
    }
    return [...shared].sort((a, b) => b[1] - a[1])[0] ?? null; // [id, cells]
  }
}
