// The lattice of a parallel run: its most probable path, and where its members are drawn.
export const ROW = 40, TOP = 6, HEIGHT = 30;
const GAP = 36, WIDEST = 200;

// The path with the greatest product of probabilities, by Viterbi's algorithm: a member of each step. `edges[i][j]` is the
// probability of member j after member i of the step before, in the model's own distribution there.
export function bestPath(steps) {
  let scores = [0];
  const back = steps.map(({members, edges}) => {
    const score = (i, j) => scores[i] + Math.log(edges[i][j]);
    const from = members.map((_, j) => edges.reduce((best, _, i) => score(i, j) > score(best, j) ? i : best, 0));
    scores = members.map((_, j) => score(from[j], j));
    return from;
  });
  let at = scores.indexOf(Math.max(...scores));
  const logprob = scores[at] ?? 0, path = [];
  for (let step = steps.length - 1; step >= 0; at = back[step--][at]) path[step] = at;
  return {path, logprob};
}

// Columns from left to right, as wide as their widest member; the first member is on top.
export function layout(steps, widthOf) {
  let x = 0;
  const columns = steps.map(({members}) => {
    const width = Math.min(WIDEST, Math.ceil(Math.max(...members.map(widthOf)))), column = {x, width};
    x += width + GAP;
    return column;
  });
  return {columns, width: Math.max(0, x - GAP), height: TOP * 2 + ROW * Math.max(1, ...steps.map(step => step.members.length))};
}

// Lines between members of neighbouring steps as paths of SVG: on the best path, probable, and less so.
export function lines(steps, columns, path) {
  const found = {faint: '', probable: '', best: ''}, middle = member => TOP + ROW * member + HEIGHT / 2;
  steps.slice(1).forEach(({edges}, k) => {
    const x = columns[k].x + columns[k].width, to = x + GAP, bend = x + GAP / 2;
    edges.forEach((row, i) => row.forEach((p, j) => {
      const kind = path[k] === i && path[k + 1] === j ? 'best' : p > .3 ? 'probable' : p > .03 ? 'faint' : null;
      if (kind) found[kind] += `M${x} ${middle(i)}C${bend} ${middle(i)} ${bend} ${middle(j)} ${to} ${middle(j)}`;
    }));
  });
  return found;
}

// The attention that a member gives: `weights` to each member of the run, `columns` to all tokens, the most first.
export function attended(run, step, member) {
  const told = run.attention.get(step);
  if (!told) return null;
  const {positions, tokens, pieces} = told;
  const columns = told.weights[member].map((weight, k) => ({weight, position: positions[k], token: tokens[k], piece: pieces[k]}));
  const to = (position, id) => columns.find(one => one.position === position && one.token === id)?.weight ?? 0;
  const weights = run.steps.map(({position, members}) => members.map(({id}) => to(position, id)));
  return {weights, columns: columns.sort((a, b) => b.weight - a.weight)};
}
