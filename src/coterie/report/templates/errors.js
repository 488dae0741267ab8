// A figure that fails says so at the top of the page.
["error", "unhandledrejection"].forEach(function (kind) {
  window.addEventListener(kind, function (event) {
    var line = document.createElement("p");
    line.className = "notice script-error";
    line.textContent = "A figure could not be drawn: " +
      (event.message || event.reason);
    document.body.prepend(line);
  });
});
