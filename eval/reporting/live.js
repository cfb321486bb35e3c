"use strict";
// The page of a run that goes on: it loads itself anew, and puts back filters, opened parts and the chosen example.
{
  const SECONDS = 20;
  const place = `place of ${location.pathname}`;
  const controls = () => [...document.querySelectorAll("select, input")];
  const parts = () => [...document.querySelectorAll("details:not(#detail *)")];
  const entries = () => [...document.querySelectorAll("#list button")];

  const words = `The run goes on: the page loads itself anew every ${SECONDS} seconds.`;
  document.querySelector("h1").after(Object.assign(document.createElement("p"), { textContent: words }));
  const kept = JSON.parse(sessionStorage.getItem(place));
  if (kept) {
    controls().forEach((control, number) => {
      control.value = kept.values[number] ?? control.value;
      control.dispatchEvent(new Event(control.matches("select") ? "change" : "input"));
    });
    parts().forEach((part, number) => { part.open = kept.open[number] ?? part.open; });
    entries()[kept.example]?.click();
  }
  setTimeout(() => {
    sessionStorage.setItem(place, JSON.stringify({
      values: controls().map((control) => control.value),
      open: parts().map((part) => part.open),
      example: entries().findIndex((entry) => entry.getAttribute("aria-current") === "true"),
    }));
    location.reload();
  }, 1000 * SECONDS);
}
