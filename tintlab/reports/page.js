"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const text = document.getElementById("text");
  const tip = document.getElementById("tip");
  const scored = [...text.querySelectorAll("[data-row]")];
  let open = null;

  function element(tag, className, ...children) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }

  function isolated(word) {
    const made = element("bdi", "", word);
    made.title = word;
    return made;
  }

  function percent(probability) {
    const share = 100 * probability;
    if (share >= 9.95) return share.toFixed(1) + "%";
    if (share >= 0.01) return share.toPrecision(2) + "%";
    return share < 0.001 ? "<0.001%" : share.toFixed(3) + "%";
  }

  function side(title, probability, alternatives) {
    const list = element("ol", "");
    for (const [word, share, actual] of alternatives) {
      const item = element("li", actual ? "actual" : "", isolated(word), element("span", "", percent(share)));
      item.style.setProperty("--share", (100 * share).toFixed(1) + "%");
      list.append(item);
    }
    return element("div", "side", element("b", "", title + " " + percent(probability)), list);
  }

  function signed(value) {
    return (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(3);
  }

  function fill(row) {
    const token = data[row];
    const word = isolated(token.word);
    word.className = "word";
    const change = token.loss - token.loss_before;
    const verdict = element("span", change < 0 ? "better" : "worse", signed(change) + " nats");
    tip.replaceChildren(
      element("div", "head", word, element("span", "where", "token " + token.position)),
      element("div", "", "loss " + token.loss_before.toFixed(3) + " \u2192 " + token.loss.toFixed(3) + " (", verdict, ")"),
      element(
        "div",
        "sides",
        side("before", token.probability_before, token.top_before),
        side("after", token.probability, token.top),
      ),
      element("div", "note", "Its probability, and the most likely tokens in its place."),
    );
  }

  // Below the token if there is room, else above; never outside of the window.
  function place(token) {
    const margin = 8;
    const boxes = token.getClientRects();
    const first = boxes[0], last = boxes[boxes.length - 1];
    const room = document.documentElement.clientWidth - tip.offsetWidth - margin;
    const height = tip.offsetHeight;
    const below = last.bottom + margin + height <= window.innerHeight;
    const top = below ? last.bottom + margin : first.top - margin - height;
    tip.style.left = Math.max(margin, Math.min((below ? last : first).left - 12, room)) + "px";
    tip.style.top = Math.max(margin, Math.min(top, window.innerHeight - height - margin)) + "px";
  }

  function show(token) {
    if (open !== token) {
      hide();
      open = token;
      fill(Number(token.dataset.row));
      token.classList.add("open");
      token.setAttribute("aria-describedby", "tip");
      tip.hidden = false;
    }
    place(token);
  }

  function hide() {
    if (!open) return;
    open.classList.remove("open");
    open.removeAttribute("aria-describedby");
    open = null;
    tip.hidden = true;
  }

  // One stop for the tab key; arrow keys go on from there.
  function focus(token) {
    for (const other of text.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    token.tabIndex = 0;
    token.focus({ preventScroll: true });
    const box = token.getBoundingClientRect();
    if (box.top < 40 || box.bottom > window.innerHeight - 40) token.scrollIntoView({ block: "center", behavior: "instant" });
    show(token);
  }

  const scoredAt = (event) => event.target.closest("[data-row]");

  text.addEventListener("pointerover", (event) => {
    const token = scoredAt(event);
    if (token) show(token);
    else hide();
  });
  text.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") hide();
  });
  text.addEventListener("focusin", (event) => {
    const token = scoredAt(event);
    if (token) show(token);
  });
  text.addEventListener("focusout", hide);
  document.addEventListener("click", (event) => {
    const token = scoredAt(event);
    if (token) focus(token);
    else if (!event.target.closest("a")) hide();
  });
  text.addEventListener("keydown", (event) => {
    const index = scored.indexOf(event.target);
    const steps = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: scored.length - 1 };
    if (index < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") hide();
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = scored[steps[event.key]];
    if (next) focus(next);
  });
  window.addEventListener("scroll", () => open && place(open), { passive: true });
  window.addEventListener("resize", () => open && place(open));

  // A link to a token, report.html#token-12, opens it.
  function follow() {
    const match = /^#token-\d+$/.exec(location.hash);
    const token = match && document.getElementById(match[0].slice(1));
    if (token && "row" in token.dataset) requestAnimationFrame(() => focus(token));
  }
  window.addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#token-"]');
    if (link && link.hash === location.hash) follow();
  });
  follow();
})();
