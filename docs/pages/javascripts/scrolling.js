/* Boxes that scroll sideways can be focused and scrolled from the keyboard; Tab skips those that fit. */
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
