// Elements. What comes from outside becomes text, never markup.

export const byId = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Writes only what is new, so that a reader's place and a selection stay.
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Makes the children of a list those of the items, keeping the elements of known ones.
export function follow(list, items, idOf, make, update) {
  const known = new Map([...list.children].map((child) => [child.dataset.id, child]));
  items.forEach((item, place) => {
    const id = idOf(item);
    const child = known.get(id) ?? make(item);
    child.dataset.id = id;
    known.delete(id);
    if (list.children[place] !== child) list.insertBefore(child, list.children[place] ?? null);
    update(child, item);
  });
  for (const gone of known.values()) gone.remove();
}
