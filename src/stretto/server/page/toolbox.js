// Tools that run in the page: examples of what a model can call. Each gets the call's arguments and answers with a text.
const text = {type: 'string'};
export const TOOLS = {
  calculator: {
    about: 'Sums, products, powers and roots, worked out in this page.',
    description: 'Calculates an arithmetic expression, as "27.4 - 11.9 * (2 + 3)" or "sqrt(2) ^ 3".',
    parameters: {type: 'object', properties: {expression: text}, required: ['expression'], additionalProperties: false},
    run: ({expression}) => String(calculate(String(expression))),
  },
  clock: {
    about: 'The date and the time of this browser.',
    description: 'Tells the date, the time and the time zone of the user.',
    parameters: {type: 'object', properties: {}, additionalProperties: false},
    run: () => `${new Date().toLocaleString('sv')} ${Intl.DateTimeFormat().resolvedOptions().timeZone}, a ${
      new Date().toLocaleDateString('en', {weekday: 'long'})}`,
  },
};

export const runsHere = name => Object.hasOwn(TOOLS, name);
export const definitions = chosen => Object.entries(TOOLS).filter(([name]) => chosen?.[name]).map(
  ([name, {description, parameters}]) => ({type: 'function', function: {name, description, parameters}}));

export function run({function: {name, arguments: given}}) {
  try { return TOOLS[name].run(JSON.parse(given || '{}')); } catch (error) { return `Error: ${error.message}`; }
}

const FUNCTIONS = {sqrt: Math.sqrt, abs: Math.abs, sin: Math.sin, cos: Math.cos, tan: Math.tan, ln: Math.log, log: Math.log10, exp: Math.exp,
  round: Math.round, floor: Math.floor, ceil: Math.ceil};
const CONSTANTS = {pi: Math.PI, e: Math.E};
// An expression by its grammar: sums of products of powers of values.
export function calculate(expression) {
  const parts = expression.replace(/[×·]/g, '*').replace(/÷/g, '/').replace(/−/g, '-').replace(/\*\*/g, '^')
    .match(/\d*\.?\d+(?:e[+-]?\d+)?|[a-z]+|[-+*/%^(),]|\S/gi) ?? [];
  let at = 0;
  const take = one => parts[at] === one && ++at > 0;
  const value = () => {
    const part = parts[at++];
    if (part === '(') { const inner = sum(); if (!take(')')) throw new Error('a bracket is not closed'); return inner; }
    if (part === '-') return -power();
    if (part === '+') return power();
    const name = part?.toLowerCase();
    if (Object.hasOwn(CONSTANTS, name)) return CONSTANTS[name];
    if (Object.hasOwn(FUNCTIONS, name) && parts[at] === '(') return FUNCTIONS[name](value());
    if (part === undefined || Number.isNaN(Number(part))) throw new Error(`“${part ?? 'the end'}” is no number`);
    return Number(part);
  };
  const power = () => { const base = value(); return take('^') ? base ** power() : base; };
  const product = () => {
    for (let found = power();;) {
      if (take('*')) found *= power();
      else if (take('/')) found /= power();
      else if (take('%')) found %= power();
      else return found;
    }
  };
  const sum = () => {
    for (let found = product();;) {
      if (take('+')) found += product();
      else if (take('-')) found -= product();
      else return found;
    }
  };
  const found = sum();
  if (at < parts.length) throw new Error(`“${parts[at]}” does not belong there`);
  return Number(found.toPrecision(12));
}
