"use strict";
// The page to try a reward model. Everything that comes from people, files or the server is set as
// text, never as markup. The key is in the password field alone: it is put into a header of each
// request, and never into an address, a storage or a copied request.
const $ = (id) => document.getElementById(id);
const settings = JSON.parse($("settings").textContent);
const REWARDS = new URL("v1/rewards", location.href).href;
const MODELS = new URL("v1/models", location.href).href;
const READY = new URL("ready", location.href).href;
const POLL_MILLISECONDS = 1000;
const LONG_COPY = 200000; // characters

let photos = []; // {name, uri}, in the order in which they are sent
const imagesOfAnswer = new WeakMap(); // for the list item of an answer, its images as {name, uri}
let example = null; // the example that is in the form, as long as it is unchanged
let model = null; // the entry of /v1/models, once the server has sent it
let revision = 0; // the number of changes of the form
let running = null; // the AbortController of the request that is being answered

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function scrolling(text, label) {
  const body = make("div", { className: "body", textContent: text, tabIndex: 0 });
  body.setAttribute("role", "region");
  body.setAttribute("aria-label", label);
  return body;
}

const withMinusSign = (text) => text.replace("-", "−");
const rounded = (value, digits) => withMinusSign(String(Number(value.toPrecision(digits))));
const scoreText = (value) => withMinusSign(value.toFixed(3));

// The form

const answerItems = () => [...$("answers").children];
const answerTexts = () => [...$("answers").querySelectorAll("textarea")];
const filesOf = (item) => item.querySelector("input[type=file]");

// The answers of the form, as {text, images}. The images follow the text.
function answers() {
  return answerItems().map((item) => ({ text: item.querySelector("textarea").value, images: [...imagesOfAnswer.get(item)] }));
}

function picture(photo, name) {
  const image = make("img", { src: photo.uri, alt: `${name}: ${photo.name}` });
  image.onload = () => image.classList.toggle("tiny", image.naturalWidth < 160);
  return image;
}

// Shows photos in a list, each with a button that removes it. The file input gets the focus when
// the last one is removed.
function showList(list, shown, kind, input) {
  const remove = (index) => {
    shown.splice(index, 1);
    showList(list, shown, kind, input);
    changed();
    const buttons = list.querySelectorAll("button");
    (buttons[Math.min(index, buttons.length - 1)] ?? input).focus();
  };
  list.hidden = shown.length === 0;
  list.replaceChildren(...shown.map((photo, index) => {
    const name = `${kind} ${index + 1}`;
    const button = make("button", { type: "button", textContent: "Remove", onclick: () => remove(index) });
    button.setAttribute("aria-label", `Remove ${name.toLowerCase()}, ${photo.name}`);
    return make("li", {}, picture(photo, name), make("span", { className: "soft", textContent: photo.name }), button);
  }));
}

const showPhotos = () => showList($("photos"), photos, "Photo", $("files"));

function showImagesOfAnswer(item) {
  const kind = `${item.querySelector("label").textContent}, image`;
  showList(item.querySelector(".photos"), imagesOfAnswer.get(item), kind, filesOf(item));
}

function dataUri(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

// Adds files to the photos of the question, or to the images of an answer if `item` is one.
async function addFiles(files, item = null) {
  const refused = [];
  const target = item ? imagesOfAnswer.get(item) : photos;
  for (const file of files) {
    if (!file.type.startsWith("image/")) {
      refused.push(`${file.name} is no photo.`);
      continue;
    }
    try {
      target.push({ name: file.name, uri: await dataUri(file) });
    } catch (error) {
      refused.push(`${file.name} cannot be read: ${error.message}`);
    }
  }
  if (item) showImagesOfAnswer(item);
  else showPhotos();
  changed();
  $("problem").textContent = refused.join("\n");
}

function addAnswer(text) {
  const area = make("textarea", { rows: 2, value: text });
  const label = make("label", {});
  const remove = make("button", { type: "button", textContent: "Remove" });
  const files = make("input", { type: "file", accept: "image/*", multiple: true, className: "unseen" });
  const choose = make("label", { className: "button", textContent: "Add images" });
  const images = make("ul", { className: "photos", hidden: true });
  const item = make("li", {}, make("div", { className: "head" }, label, remove), area, make("div", { className: "images" }, files, choose, images));
  imagesOfAnswer.set(item, []);
  files.onchange = async () => {
    await addFiles([...files.files], item);
    files.value = ""; // so that the same image can be chosen again
  };
  remove.onclick = () => removeAnswer(item);
  area.setAttribute("aria-describedby", "problem");
  $("answers").append(item);
  numberAnswers();
  return area;
}

function removeAnswer(item) {
  if ($("answers").children.length <= settings.min_answers) return;
  const index = answerItems().indexOf(item);
  item.remove();
  numberAnswers();
  changed();
  const areas = answerTexts();
  areas[Math.min(index, areas.length - 1)].focus();
}

function numberAnswers() {
  const items = answerItems();
  items.forEach((item, index) => {
    const area = item.querySelector("textarea");
    area.id = `answer-${index + 1}`;
    item.querySelector("label").htmlFor = area.id;
    item.querySelector("label").textContent = `Answer ${index + 1}`;
    const files = filesOf(item);
    files.id = `answer-images-${index + 1}`;
    const choose = item.querySelector("label.button");
    choose.htmlFor = files.id;
    choose.setAttribute("aria-label", `Add images to answer ${index + 1}`);
    item.querySelector(".photos").setAttribute("aria-label", `Images of answer ${index + 1}`);
    showImagesOfAnswer(item);
    const remove = item.querySelector(".head button");
    remove.setAttribute("aria-label", `Remove answer ${index + 1}`);
    remove.setAttribute("aria-disabled", String(items.length <= settings.min_answers));
  });
  $("add").setAttribute("aria-disabled", String(items.length >= settings.max_answers));
}

function showExample(chosen) {
  $("question").value = chosen.question;
  photos = [...chosen.photos];
  $("answers").replaceChildren();
  chosen.answers.forEach(addAnswer);
  showPhotos();
  changed();
  example = chosen;
}

function clearProblem() {
  $("problem").textContent = "";
  for (const field of $("form").querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

// Notes that the form differs from what was scored.
function changed() {
  example = null;
  revision += 1;
  clearProblem();
  const hasScores = $("results").children.length > 0;
  $("stale").hidden = !hasScores;
  document.body.classList.toggle("stale", hasScores);
  showRequests();
}

// The request

function requestBody() {
  const group = { messages: $("question").value, responses: answers().map(response), images: photos.map((photo) => photo.uri) };
  return { groups: [group], texts: true };
}

// Returns an answer as the server reads it: a text, or a list of parts if it has images.
function response(answer) {
  if (!answer.images.length) return answer.text;
  const parts = answer.images.map((image) => ({ type: "image_url", image_url: { url: image.uri } }));
  return answer.text.trim() ? [{ type: "text", text: answer.text }, ...parts] : parts;
}

function headers() {
  const sent = { "Content-Type": "application/json" };
  const key = settings.needs_key ? $("key").value.trim() : "";
  if (key) sent.Authorization = `Bearer ${key}`;
  return sent;
}

// The body is the input of the command and no argument, because arguments have a limit of 128 KiB.
function curlCommand(body) {
  const key = settings.needs_key ? ' \\\n  -H "Authorization: Bearer $REWARD_API_KEY"' : "";
  const json = JSON.stringify(body, null, 1);
  return `curl ${shellQuoted(REWARDS)} \\\n  -H 'Content-Type: application/json'${key} \\\n  --data-binary @- <<'END'\n${json}\nEND\n`;
}

function shellQuoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// JSON's texts, lists and objects of texts are Python's too, and the only other value of a body is
// `true`.
function pythonProgram(body) {
  const key = settings.needs_key ? '\n    "Authorization": "Bearer " + os.environ["REWARD_API_KEY"],' : "";
  const group = Object.entries(body.groups[0]).map(([name, value]) => `            ${JSON.stringify(name)}: ${JSON.stringify(value)},\n`);
  return `import json
${settings.needs_key ? "import os\n" : ""}import urllib.request

body = {
    "groups": [
        {
${group.join("")}        }
    ],
    "texts": True,
}
headers = {
    "Content-Type": "application/json",${key}
}
request = urllib.request.Request(${JSON.stringify(REWARDS)}, json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as answer:
    print(json.dumps(json.load(answer), indent=1))
`;
}

const COPIES = { curl: curlCommand, python: pythonProgram };

// Shows the requests that are opened, with shortened photos.
function showRequests() {
  const body = requestBody();
  const shortened = (uri) => uri.length > 120 ? `${uri.slice(0, 60)}… (${uri.length} characters in the copy)` : uri;
  body.groups[0].images = body.groups[0].images.map(shortened);
  for (const parts of body.groups[0].responses.filter(Array.isArray)) {
    for (const part of parts.filter((one) => one.type === "image_url")) part.image_url.url = shortened(part.image_url.url);
  }
  for (const [name, written] of Object.entries(COPIES)) {
    const place = $(`shown-${name}`);
    if (place.open) place.querySelector("pre").textContent = written(body);
  }
}

async function copy(name) {
  const text = COPIES[name](requestBody());
  if (!(await isWritten(text)) && !isCopiedBySelection(text)) {
    $("copied").textContent = "The browser does not allow to copy. Select the text below.";
    $(`shown-${name}`).open = true;
    return;
  }
  const advice = text.length > LONG_COPY ? " It holds the photos: paste it into a file and run that." : "";
  $("copied").textContent = `Copied ${text.length.toLocaleString("en")} characters.${advice}`;
}

// Writes a text to the clipboard. The browser allows it at https and on this machine only.
async function isWritten(text) {
  if (!navigator.clipboard) return false;
  return navigator.clipboard.writeText(text).then(() => true, () => false);
}

// Copies a text in the way that works at http as well.
function isCopiedBySelection(text) {
  const focused = document.activeElement;
  const area = make("textarea", { value: text, className: "unseen" });
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused.focus();
  return isCopied;
}

// Sending

// Returns why there can be no request with this key, or an empty text.
function problemOfKey() {
  if (!settings.needs_key) return "";
  const key = $("key").value.trim();
  if (!key) return "This server needs its key.";
  return /^[!-~]+$/.test(key) ? "" : "This is no key: it holds a blank or a letter outside of ASCII.";
}

// Returns what is missing in the form, as [message] or [message, field], or null.
function problemOf(body) {
  const keyProblem = problemOfKey();
  if (keyProblem) return [keyProblem, $("key")];
  if (!$("question").value.trim()) return ["There is no question.", $("question")];
  const empty = answers().findIndex((answer) => !answer.text.trim() && !answer.images.length);
  if (empty >= 0) return [`Answer ${empty + 1} is empty. Write it, add an image, or remove it.`, answerTexts()[empty]];
  const size = new Blob([body]).size;
  if (model && size > model.limits.body) {
    return [`The request has ${size.toLocaleString("en")} bytes, and this server takes ${model.limits.body.toLocaleString("en")}. Remove a photo, or take a smaller one.`];
  }
  return null;
}

function showProblem(message, field) {
  $("problem").textContent = message;
  field?.setAttribute("aria-invalid", "true");
  field?.focus();
}

async function score(event) {
  event?.preventDefault();
  if (running) return;
  const body = JSON.stringify(requestBody());
  clearProblem();
  const problem = problemOf(body);
  if (problem) {
    showProblem(...problem);
    return;
  }
  const scored = { answers: answers(), example, revision };
  running = new AbortController();
  setBusy(true);
  const started = performance.now();
  try {
    const answer = await post(body, running.signal);
    showScores(answer.groups[0], scored, (performance.now() - started) / 1000);
    if (!model) await showModel();
  } catch (error) {
    $("status").textContent = $("results").children.length ? "" : "The scores will be shown here.";
    if (error.name !== "AbortError") showProblem(error.message, error.field);
  } finally {
    running = null;
    setBusy(false);
  }
}

function setBusy(isBusy) {
  $("score").setAttribute("aria-disabled", String(isBusy));
  $("cancel").hidden = !isBusy;
  if (isBusy) $("status").textContent = "Scoring …";
}

// Returns the answer of /v1/rewards. Throws an Error with a message for people.
async function post(body, signal) {
  let reply;
  try {
    reply = await fetch(REWARDS, { method: "POST", headers: headers(), body, signal, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`The server does not answer (${error.message}).`);
  }
  let answer;
  try {
    answer = await reply.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`The answer has the status ${reply.status} and is no JSON. A proxy in front of the server may have sent it.`);
  }
  if (reply.status === 401) throw Object.assign(new Error("The server does not accept this key."), { field: $("key") });
  if (!reply.ok) throw new Error(answer.error.message);
  return answer;
}

// The results

function showScores(group, scored, seconds) {
  const lowest = Math.min(...group.scores);
  const isCompared = group.votes.length > 0;
  // A bar is the distance from the lowest score. Distances below 1 do not fill the bar, so that
  // nearly equal scores look so. A share of won comparisons is drawn from 0.
  const start = isCompared ? 0 : lowest;
  const whole = Math.max(1, Math.max(...group.scores) - start);
  $("results").replaceChildren(...group.order.map((index, place) => result(group, scored.answers, index, place, (group.scores[index] - start) / whole)));
  const unshared = group.tokens_unshared > group.tokens ? ` (${group.tokens_unshared.toLocaleString("en")} if each answer had its own prompt)` : "";
  const unread = group.unread ? `, of which ${group.unread} cannot be read` : "";
  const facts = [
    ["Margin of the best", rounded(group.margin, 3)],
    ["Tokens computed", `${group.tokens.toLocaleString("en")}${unshared}`],
    ["Seconds", rounded(seconds, 2)],
  ];
  if (group.judgements) facts.push(["Judgements", `${group.judgements}${unread}`]);
  if (scored.example) facts.push(["Right answer in the data", `Answer ${scored.example.right + 1}`]);
  $("facts").replaceChildren(...facts.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))));
  $("votes").replaceChildren(...group.votes.map(vote));
  const meaning = isCompared ? "A score is the share of its comparisons that an answer won." : "Compare scores of this question only. A bar is the distance from the lowest score.";
  const verdict = group.margin === 0 ? "The best two answers are tied." : `Answer ${group.order[0] + 1} is the best one.`;
  const isWrong = scored.example && group.margin > 0 && group.order[0] !== scored.example.right;
  const remark = isWrong ? " The model prefers a wrong answer here." : "";
  $("status").textContent = `${verdict}${remark} ${meaning}`;
  const isStale = scored.revision !== revision; // the form changed while the model computed
  $("stale").hidden = !isStale;
  document.body.classList.toggle("stale", isStale);
  const heading = $("results-heading");
  heading.focus({ preventScroll: true });
  const { top } = heading.getBoundingClientRect();
  if (top < 0 || top > window.innerHeight / 2) heading.scrollIntoView();
}

function result(group, answers, index, place, share) {
  const value = make("data", { value: String(group.scores[index]), textContent: scoreText(group.scores[index]) });
  const name = make("h3", { textContent: `${place + 1}. Answer ${index + 1}` });
  const fill = make("div", { className: "fill" });
  fill.style.width = `${100 * share}%`;
  const normalised = group.normalised ? make("p", { className: "soft", textContent: `${scoreText(group.normalised[index])} standard deviations from the mean of this model's scores` }) : null;
  const critique = group.critiques.length ? make("details", { open: true }, make("summary", { textContent: "What the model wrote" }), scrolling(group.critiques[index], `Critique of answer ${index + 1}`)) : null;
  return make("li", { className: place === 0 && group.margin > 0 ? "best" : "" }, make("div", { className: "head" }, name, value),
    make("div", { className: "track" }, fill), normalised, textOfResult(answers[index].text, index, place), imagesOfResult(answers[index]), critique);
}

// Returns the text of a scored answer, or null if it consists of images alone.
function textOfResult(text, index, place) {
  return text.trim() ? scrolling(text, `Answer ${index + 1}, number ${place + 1} by its score`) : null;
}

// Returns the images of a scored answer as a list, or null if it has none.
function imagesOfResult(answer) {
  if (!answer.images.length) return null;
  const items = answer.images.map((image, index) => make("li", {}, picture(image, `Image ${index + 1}`)));
  return make("ul", { className: "photos" }, ...items);
}

function vote(one, index) {
  const [first, second] = one.shown.map((answer) => `answer ${answer + 1}`);
  const verdict = one.named === null ? "names none" : `prefers answer ${one.named + 1}`;
  return make("details", { open: index === 0 }, make("summary", { textContent: `Judgement ${index + 1}: ${first} before ${second}, ${verdict}` }),
    scrolling(one.text, `Judgement ${index + 1}`));
}

// The model

async function showModel() {
  const keyProblem = problemOfKey();
  if (keyProblem) {
    $("model").textContent = keyProblem;
    return;
  }
  let reply;
  try {
    reply = await fetch(MODELS, { headers: headers(), credentials: "omit", cache: "no-store" });
  } catch (error) {
    $("model").textContent = `The server does not answer (${error.message}).`;
    return;
  }
  if (reply.status === 401) {
    $("model").textContent = "The server does not accept this key.";
    return;
  }
  if (!reply.ok) {
    $("model").textContent = "The server is not ready.";
    return;
  }
  [model] = (await reply.json()).data;
  const compares = model.kind === "generative" ? " It compares every two answers in both orders: N answers take N (N − 1) judgements." : "";
  $("model").textContent = `${model.id} (${model.kind}).${compares}`;
}

// Waits until the model is loaded, which /ready tells without a key.
async function awaitModel() {
  for (;;) {
    const status = await fetch(READY, { cache: "no-store" }).then((reply) => reply.json()).then((answer) => answer.status, () => null);
    if (status === "ready") return showModel();
    $("model").textContent = { loading: "The model is being loaded …", draining: "The server is being shut down." }[status] ?? "The server does not answer.";
    await new Promise((done) => setTimeout(done, POLL_MILLISECONDS));
  }
}

// Events

$("examples").append(...settings.examples.map((shown) => {
  const images = shown.photos.map((photo) => make("img", { src: photo.uri, alt: "" }));
  return make("li", {}, make("button", { type: "button", onclick: () => showExample(shown) }, ...images, make("span", { textContent: shown.question })));
}));
for (let count = 0; count < settings.min_answers; count++) addAnswer("");
$("add").onclick = () => {
  if ($("answers").children.length >= settings.max_answers) return;
  const area = addAnswer("");
  changed();
  area.focus();
};
$("form").addEventListener("submit", score);
$("form").addEventListener("input", (event) => {
  if (event.target !== $("key") && event.target.type !== "file") changed();
});
$("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) score(event);
});
$("key")?.addEventListener("change", showModel);
$("cancel").onclick = () => running?.abort();
$("files").addEventListener("change", async () => {
  await addFiles([...$("files").files]);
  $("files").value = ""; // so that the same photo can be chosen again
});
for (const name of Object.keys(COPIES)) {
  $(`copy-${name}`).onclick = () => copy(name);
  $(`shown-${name}`).addEventListener("toggle", showRequests);
}
document.addEventListener("paste", (event) => {
  const isText = event.target.matches("textarea, input") && event.clipboardData.types.includes("text/plain");
  if (!event.clipboardData.files.length || isText) return;
  event.preventDefault();
  addFiles([...event.clipboardData.files], event.target.closest("#answers > li"));
});
// A file that is dropped anywhere else on the page must not replace it.
document.addEventListener("dragover", (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  $("drop").classList.add("over");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) $("drop").classList.remove("over");
});
document.addEventListener("drop", (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  $("drop").classList.remove("over");
  addFiles([...event.dataTransfer.files], event.target.closest("#answers > li"));
});
showRequests();
awaitModel();
