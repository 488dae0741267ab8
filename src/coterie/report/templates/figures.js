// Figures are drawn from their JSON when they are seen first. Their title is text of
// the page, which can take several lines. A phone has less room for names of clients.
(function () {
  var narrow = matchMedia("(max-width: 600px)");
  function cut(text, most) {
    var whole = text.length <= most || /[&<]/.test(text);
    return whole ? text : text.slice(0, most - 1) + "…";
  }
  function fit(layout) {
    layout.margin = Object.assign({ t: 64 }, layout.margin);
    layout.margin.t -= 26;
    if (!narrow.matches) { return; }
    Object.assign(layout.margin, { l: 48, r: 8 });
    layout.font = Object.assign({}, layout.font, { size: 12 });
    layout.dragmode = false;  // a finger scrolls the page
    var square = "scaleanchor" in (layout.yaxis || {});
    if (square) { layout.height = Math.min(layout.height, innerWidth + 200); }
    Object.keys(layout).forEach(function (key) {
      var axis = layout[key];
      if (!/^[xy]axis/.test(key) || !axis.ticktext) { return; }
      var most = key[0] === "x" || square ? 12 : 20, count = axis.ticktext.length;
      axis.ticktext = axis.ticktext.map(function (text) { return cut(text, most); });
      if (key[0] === "x" && count > 12) {
        Object.assign(axis, { tickangle: -90, tickfont: { size: 10 } });
      }
      if (most === 12 && count > 24) {
        Object.assign(axis, { showticklabels: false, ticks: "" });
        if (square) { axis.title = { text: "" }; }
      }
    });
  }
  function draw(figure) {
    var box = figure.querySelector(".plotly-graph-div");
    var told = JSON.parse(figure.querySelector("script").textContent);
    fit(told.layout);
    box.style.height = (told.layout.height || 450) + "px";
    told.config = { displaylogo: false, responsive: true,
      displayModeBar: narrow.matches ? false : "hover",
      modeBarButtons: [["toImage", "resetScale2d"]] };
    return Plotly.newPlot(box, told).then(function () {
      function entitle() {
        var title = box.querySelector(".gtitle");
        figure.querySelector("figcaption").textContent = title && title.textContent;
      }
      box.on("plotly_afterplot", entitle);
      entitle();
    });
  }
  function drawSeen() {
    document.querySelectorAll("figure:not([hidden])").forEach(draw);
  }
  document.querySelectorAll("select[data-chooses]").forEach(function (select) {
    var group = select.dataset.chooses;
    var lists = document.querySelectorAll("select[data-chooses=" + group + "]");
    select.addEventListener("change", function () {
      var key = Array.from(lists).map(function (one) { return one.value; }).join("-");
      document.querySelectorAll("." + group).forEach(function (part) {
        part.hidden = part.id !== key;
        if (!part.hidden && part.matches("figure")) { draw(part); }
      });
    });
  });
  document.querySelectorAll("input[data-finds]").forEach(function (input) {
    input.addEventListener("input", function () {
      var rows = document.querySelectorAll("." + input.dataset.finds + " tbody tr");
      rows.forEach(function (row) {
        var name = row.cells[0].textContent.toLowerCase();
        row.hidden = !name.includes(input.value.toLowerCase());
      });
    });
  });
  narrow.addEventListener("change", drawSeen);
  drawSeen();
})();
