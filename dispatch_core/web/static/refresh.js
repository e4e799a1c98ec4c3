// Keeps what is shown up to date: every few seconds the page is read again and its live part put in place of the old.
// Never while a person writes into a form or looks elsewhere; without this file a reload does the same.
"use strict";

const live = () => document.getElementById("live");
const note = document.getElementById("stale"); // data-still: a page that is shown as it was asked for

function isInUse() {
  const forms = [...document.querySelectorAll("#live form")];
  const written = forms.some((form) => [...form.elements].some((field) => field.type === "text" && field.value !== field.defaultValue));
  const focused = document.activeElement && document.activeElement.closest("#live form, #live summary");
  return document.hidden || written || Boolean(focused) || Boolean(String(document.getSelection()));
}

async function refresh() {
  if (isInUse()) return;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    if (!fresh) throw new Error("not the same page");
    if (isInUse()) return;
    const focus = document.activeElement && document.activeElement.id;
    const opened = [...live().querySelectorAll("details[id][open]")].map((part) => part.id);
    live().replaceWith(document.importNode(fresh, true));
    for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
    if (focus) document.getElementById(focus)?.focus();
    note.hidden = true;
  } catch {
    note.hidden = false;
  }
}

if (live() && !("still" in live().dataset)) setInterval(refresh, 10000);
