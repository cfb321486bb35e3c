"use strict";
// The browser of examples. Everything that comes from data is set as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SIGNS = { right: "✓", wrong: "✗", tie: "=", unparsable: "?" };
const nameOf = (side) => `Response ${side + 1}`;
// A row with a ranking of several responses has their `ranks`, 0 for the best; a pair has the index of the `better` one.
const rankOf = (item, side) => item.ranks ? item.ranks[side] : Number(item.better !== side);
const shownSides = (item) => item.ranks ? item.ranks.map((rank, side) => side) : [0, 1];

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const items = Object.entries(data).flatMap(([benchmark, { rows }]) => rows.map((row) => ({ ...row, benchmark })));
const question = (item) => item.turns.filter((turn) => turn.role === "user").map((turn) => turn.text).join(" ") || item.identity;
const words = new Map(items.map((item) => [item, [item.identity, item.group, item.source, ...item.turns.map((turn) => turn.text),
  ...(item.responses ?? []), ...(item.critiques ?? []), ...item.votes.map((vote) => vote.text)].join("\n").toLowerCase()]));
const number = (value) => String(Number(value.toPrecision(4))).replace("-", "−");
let visible = [], at = 0;

function options(select, entries) {
  const before = select.value;
  select.replaceChildren(...entries.map(([value, text]) => make("option", { value, textContent: text })));
  select.value = entries.some(([value]) => value === before) ? before : "";
}

function categories() {
  const groups = new Set(items.filter((item) => !$("benchmark").value || item.benchmark === $("benchmark").value).map((item) => item.group));
  options($("category"), [["", "all categories"], ...[...groups].sort().map((group) => [group, group])]);
}

function matches(item) {
  const outcome = $("outcome").value;
  return (!$("benchmark").value || item.benchmark === $("benchmark").value)
    && (!$("category").value || item.group === $("category").value)
    && (!outcome || (outcome === "worst" ? item.rank !== null : item.outcome === outcome))
    && $("search").value.toLowerCase().split(/\s+/).every((word) => words.get(item).includes(word));
}

function filter() {
  const current = visible[at];
  visible = items.filter(matches);
  if ($("outcome").value === "worst") visible.sort((one, two) => one.rank - two.rank);
  $("list").replaceChildren(...visible.map(entry));
  show(Math.max(visible.indexOf(current), 0));
}

function entry(item, place) {
  const sign = make("span", { className: `${item.outcome}-text`, textContent: SIGNS[item.outcome] });
  sign.setAttribute("aria-label", item.outcome);
  const button = make("button", { type: "button", onclick: () => show(place) }, sign,
    make("span", { textContent: question(item) }), make("small", { textContent: `${item.benchmark} · ${item.group}` }));
  return make("li", {}, button);
}

function show(place) {
  at = place;
  [...$("list").children].forEach(({ firstChild: button }, number) => {
    button.tabIndex = number === at ? 0 : -1;
    button.setAttribute("aria-current", String(number === at));
  });
  $("position").textContent = visible.length ? `Example ${at + 1} of ${visible.length}` : "No example fits these filters.";
  // Not `disabled`: a button that is disabled while it has the focus loses it.
  $("previous").setAttribute("aria-disabled", String(at <= 0));
  $("next").setAttribute("aria-disabled", String(at >= visible.length - 1));
  $("detail").replaceChildren(...(visible.length ? detail(visible[at]) : []));
  const button = $("list").children[at];
  if (button) {
    const above = button.offsetTop - $("list").offsetTop;
    if (above < $("list").scrollTop || above + button.offsetHeight > $("list").scrollTop + $("list").clientHeight) $("list").scrollTop = above - 60;
  }
}

function picture(item, name, number, text) {
  const img = make("img", { alt: `Picture ${number} of ${item.images.length} to: ${text.slice(0, 120)}`, src: data[item.benchmark].images[name] });
  img.onload = () => img.classList.toggle("tiny", img.naturalWidth < 160);
  return img;
}

function strip(item, name, number, of) {
  return make("img", { className: "strip", alt: `Frames of video ${number} of ${of}`, src: data[item.benchmark].images[name] });
}

function scrolling(text, label) {
  const body = make("div", { className: "body", textContent: text, tabIndex: 0 });
  body.setAttribute("role", "region");
  body.setAttribute("aria-label", label);
  return body;
}

function pictureOfResponse(item, name, number, side) {
  const img = make("img", { alt: `Picture ${number} of ${nameOf(side)} to: ${question(item).slice(0, 120)}`, src: data[item.benchmark].images[name] });
  img.onload = () => img.classList.toggle("tiny", img.naturalWidth < 160);
  return img;
}

function response(item, side) {
  const drawn = item.response_images[side] ?? [];
  const filmed = item.response_videos[side] ?? [];
  const named = item.votes.filter((vote) => vote.names === side).length;
  const others = shownSides(item).filter((other) => other !== side);
  const values = item.scores ?? item.probabilities;
  const preferred = values ? others.every((other) => values[side] > values[other]) : named * 2 > item.votes.length;
  const label = item.ranks ? `rank ${item.ranks[side] + 1} by the label` : rankOf(item, side) === 0 ? "better by the label" : "worse by the label";
  const facts = [label];
  if (item.scores) facts.push(`score ${item.scores[side] === null ? "not finite" : number(item.scores[side])}`);
  if (item.probabilities) facts.push(`P(better) ${item.probabilities[side] === null ? "not finite" : number(item.probabilities[side])}`);
  const votes = item.ranks ? item.votes.filter((vote) => vote.shown.includes(side)) : item.votes;
  if (votes.length) facts.push(`${named} of ${votes.length} votes`);
  if (preferred) facts.push("preferred by the judge");
  const critique = item.critiques && item.critiques[side]
    ? make("details", { open: true }, make("summary", { textContent: "Critique" }), scrolling(item.critiques[side], `Critique of ${nameOf(side)}`)) : null;
  return make("div", { className: rankOf(item, side) === 0 ? "response better" : "response" }, make("h3", { textContent: nameOf(side) }),
    make("div", { className: "soft", textContent: facts.join(" · ") }),
    item.responses && (item.responses[side] || !(drawn.length || filmed.length)) ? scrolling(item.responses[side], nameOf(side)) : null,
    make("div", { className: "pictures" }, ...drawn.map((name, number) => pictureOfResponse(item, name, number + 1, side)),
      ...filmed.map((name, number) => strip(item, name, number + 1, nameOf(side)))), critique);
}

function vote(item, one, number) {
  const shown = one.shown ?? [one.first, 1 - one.first];
  const best = Math.min(...shown.map((side) => rankOf(item, side)));
  const verdict = one.names === null ? "cannot be read" : `names ${nameOf(one.names)}: ${rankOf(item, one.names) === best ? "right" : "wrong"}`;
  const soft = typeof one.probability_first === "number" ? `; P(shown first is better) ${number(one.probability_first)}` : "";
  const second = item.ranks ? ` before ${nameOf(shown[1])}` : " first";
  return make("details", {}, make("summary", { textContent: `Judgement ${number + 1}, ${nameOf(shown[0])} shown${second}: ${verdict}${soft}` }),
    scrolling(one.text, `Judgement ${number + 1}`));
}

function detail(item) {
  const verdict = make("strong", { className: `${item.outcome}-text`, textContent: `${SIGNS[item.outcome]} ${item.outcome}` });
  const facts = [item.benchmark, item.group, item.source, item.margin === null ? null : `margin ${number(item.margin)}`,
    item.rank === null ? null : `worst mistake no. ${item.rank}`, item.identity].filter(Boolean);
  const several = item.turns.length > 1;
  return [
    make("p", {}, verdict, make("span", { className: "soft", textContent: ` · ${facts.join(" · ")}` })),
    ...item.missing.map((text) => make("p", { className: "note", textContent: text })),
    make("div", { className: "pictures" }, ...item.images.map((name, number) => picture(item, name, number + 1, question(item))),
      ...item.videos.map((name, number) => strip(item, name, number + 1, item.identity))),
    ...item.turns.map((turn) => make("div", { className: "turn" }, several ? make("b", { textContent: turn.role }) : null, turn.text)),
    make("div", { className: "pair" }, ...shownSides(item).map((side) => response(item, side))),
    ...item.votes.map((one, number) => vote(item, one, number)),
  ];
}

function move(by, focus) {
  const place = at + by;
  if (place < 0 || place >= visible.length) return;
  show(place);
  if (focus) $("list").children[place].firstChild.focus();
}

function open(hash) {
  const [, benchmark, key] = decodeURIComponent(hash).split("/");
  const item = items.find((one) => one.benchmark === benchmark && one.key === key);
  if (!item) return;
  for (const id of ["benchmark", "category", "outcome", "search"]) $(id).value = "";
  categories();
  filter();
  show(visible.indexOf(item));
  $("examples").scrollIntoView();
  $("list").children[at].firstChild.focus({ preventScroll: true });
}

function keys(event) {
  const inside = event.target.closest("#list");
  if (event.target.matches("input, select") || event.altKey || event.ctrlKey || event.metaKey) return;
  const by = { ArrowLeft: -1, ArrowRight: 1, ...(inside ? { ArrowUp: -1, ArrowDown: 1 } : {}) }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  move(by, inside !== null);
}

options($("benchmark"), [["", "all benchmarks"], ...Object.keys(data).map((name) => [name, name])]);
categories();
$("benchmark").addEventListener("change", () => { categories(); filter(); });
for (const id of ["category", "outcome"]) $(id).addEventListener("change", filter);
$("search").addEventListener("input", filter);
$("previous").addEventListener("click", () => move(-1, false));
$("next").addEventListener("click", () => move(1, false));
$("examples").addEventListener("keydown", keys);
window.addEventListener("hashchange", () => { if (location.hash.startsWith("#example/")) open(location.hash); });
for (const place of document.querySelectorAll(".thumb")) {
  const item = items.find((one) => one.benchmark === place.dataset.benchmark && one.key === place.dataset.key);
  place.replaceChildren(item.images.length ? picture(item, item.images[0], 1, question(item)) : strip(item, item.videos[0], 1, item.identity));
}
filter();
if (location.hash.startsWith("#example/")) open(location.hash);
