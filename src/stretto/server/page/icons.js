// Icons as paths on a field of 20 × 20, and buttons that are nothing but one.
import {html} from './vendor/preact.js';

const PATHS = {
  menu: 'M3 5h14M3 10h14M3 15h14', plus: 'M10 4v12M4 10h12', search: 'M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4zM13 13l4 4',
  close: 'M5 5l10 10M15 5L5 15', pin: 'M7 3h6l-1 6 3 3H5l3-3-1-6zM10 12v5', copy: 'M7 7h9v9H7zM13 7V4H4v9h3',
  edit: 'M4 16l1-4 8-8 3 3-8 8-4 1z', again: 'M16 10a6 6 0 1 1-2-4.5M16 3v4h-4', more: 'M4 10h9M10 6l4 4-4 4M17 5v10',
  bin: 'M4 6h12M8 6V4h4v2M6 6l1 10h6l1-10', send: 'M10 16V5M5 9l5-5 5 5', stop: 'M5 5h10v10H5z', down: 'M6 8l4 4 4-4',
  clip: 'M14 8l-5 5a2 2 0 0 1-3-3l6-6a3 3 0 0 1 4 4l-6 6a5 5 0 0 1-7-7l5-5', end: 'M10 4v9M6 9l4 4 4-4M5 16h10', left: 'M12 5l-5 5 5 5',
  right: 'M8 5l5 5-5 5', dials: 'M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4', theme: 'M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14',
  layers: 'M10 3l7 4-7 4-7-4zM3 11l7 4 7-4', fork: 'M6 4v12M6 11c0-3 8-2 8-6M14 5V4', tool: 'M4 6l4 4-4 4M10 15h6', tree: 'M5 4v9a2 2 0 0 0 2 2h3M5 8h5M13 6h3v4h-3zM13 13h3v4h-3z',
};
export const Icon = ({name}) => html`<svg viewBox="0 0 20 20" aria-hidden="true"><path d=${PATHS[name]}/></svg>`;
export const Act = ({icon, label, ...rest}) => html`
  <button type="button" class="icon" aria-label=${label} title=${label} ...${rest}><${Icon} name=${icon}/></button>`;
