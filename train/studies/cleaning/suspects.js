"use strict";
// Decisions about labels by the keyboard. The decisions stay in the browser's storage until they are downloaded.
const main = document.querySelector("main");
const articles = [...document.querySelectorAll("article")];
const buttons = [...document.querySelectorAll("button[data-action]")];
const store = main.dataset.store;
const WORDS = { keep: "The label is right.", flip: "The label is wrong.", equal: "Both are equally good.", leave_out: "Left out." };
const isBlind = buttons.some((button) => button.dataset.action === "first");
// [key of the record, decision, decision before or null] for every step, so that each can be undone.
const steps = JSON.parse(localStorage.getItem(store) ?? "[]");
const decisions = new Map();
for (const [key, decision] of steps) decisions.set(key, decision);
let at = Math.max(articles.findIndex((article) => !decisions.has(article.dataset.key)), 0);

function wordsOf(article) {
  const decision = decisions.get(article.dataset.key);
  if (decision === undefined) return "";
  if (!isBlind || decision === "equal" || decision === "leave_out") return WORDS[decision];
  return decision === article.dataset.first ? "A is better." : "B is better.";
}

function show(place) {
  at = Math.min(Math.max(place, 0), articles.length - 1);
  articles.forEach((article, index) => {
    article.hidden = index !== at;
    article.querySelector(".decision").textContent = wordsOf(article);
  });
  document.getElementById("position").textContent = `Record ${at + 1} of ${articles.length}, ${decisions.size} decided`;
}

function decide(decision) {
  const { key } = articles[at].dataset;
  steps.push([key, decision, decisions.get(key) ?? null]);
  decisions.set(key, decision);
  localStorage.setItem(store, JSON.stringify(steps));
  show(at + 1);
}

function undo() {
  const step = steps.pop();
  if (step === undefined) return;
  const [key, , before] = step;
  if (before === null) decisions.delete(key);
  else decisions.set(key, before);
  localStorage.setItem(store, JSON.stringify(steps));
  show(articles.findIndex((article) => article.dataset.key === key));
}

function act(action) {
  if (articles.length === 0) return;
  if (action === "undo") undo();
  else if (action === "next") show(at + 1);
  else if (action === "previous") show(at - 1);
  else if (action === "first" || action === "second") decide(articles[at].dataset[action]);
  else decide(action);
}

function written() {
  return articles.filter((article) => decisions.has(article.dataset.key)).map((article) => {
    const { key, source, row } = article.dataset;
    return JSON.stringify({ key, decision: decisions.get(key), source, row: Number(row), reason: "decided on the page" }) + "\n";
  }).join("");
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([written()], { type: "application/x-ndjson" }));
  link.download = "decisions.jsonl";
  link.click();
  URL.revokeObjectURL(link.href);
}

const actionOfKey = new Map(buttons.map((button) => [button.querySelector("kbd").textContent, button.dataset.action]));
for (const button of buttons) button.addEventListener("click", () => act(button.dataset.action));
document.getElementById("download").addEventListener("click", download);
document.addEventListener("keydown", (event) => {
  const action = actionOfKey.get(event.key.toLowerCase());
  if (action === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(action);
});
if (articles.length > 0) show(at);
