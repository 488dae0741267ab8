// Shows the counts of the client and algorithm that were chosen.
(function () {
  var told = JSON.parse(document.getElementById("counts-data").textContent);
  var lists = document.querySelectorAll("select[data-counts]");
  var lines = document.querySelectorAll("#counts tbody tr");
  function show() {
    var chosen = told[lists[0].value][lists[1].value];
    lines.forEach(function (line, i) {
      var row = new Array(lines.length).fill(0), total = 0;
      chosen.forEach(function (entry) {
        if (entry[0] === i) { row[entry[1]] = entry[2]; total += entry[2]; }
      });
      line.querySelectorAll("td").forEach(function (cell, k) {
        var share = total ? row[Math.min(k, row.length - 1)] / total : 0;
        cell.textContent = row[k];
        if (k === row.length) {
          share = 0;
          cell.textContent = total ? (100 * row[i] / total).toFixed(1) + " %" : "–";
        }
        cell.style.background = "rgba(0, 114, 178, " + (share / 2).toFixed(2) + ")";
      });
    });
  }
  lists.forEach(function (list) { list.addEventListener("change", show); });
  show();
})();
