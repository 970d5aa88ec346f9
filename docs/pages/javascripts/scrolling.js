/* What scrolls sideways can be reached and scrolled from the keyboard, too; what fits is no stop on the way. */
(() => {
  const boxes = ".equation > div, .md-typeset__scrollwrap, .md-typeset p:has(> .diagram)";
  const mark = () => {
    for (const box of document.querySelectorAll(boxes)) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  addEventListener("load", mark);
  addEventListener("resize", mark);
})();
