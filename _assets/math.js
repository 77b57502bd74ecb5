// Render the page's TeX (written by tools/nbdev_book.py) with KaTeX, which keeps MathML beside it for screen readers.
// A formula that KaTeX refuses stays on the page in red, with the reason as its tooltip.
document.addEventListener("DOMContentLoaded", () => {
  for (const el of document.querySelectorAll("span.math, div.math > .formula")) {
    katex.render(el.textContent, el, { displayMode: el.matches(".formula"), throwOnError: false, strict: "ignore" });
  }
});
