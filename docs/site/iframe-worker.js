// Search runs in a worker. Browsers start no worker for a page that was opened from a
// folder, so there a hidden frame does its work. Zensical would load such a file from
// the internet, unless a polyfill with this name is in its settings.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const copy = structuredClone(data);
        setTimeout(() => this.onmessage && this.onmessage({ data: copy }));
      };
      const script = inside.document.createElement("script");
      this.loaded = new Promise((done) => (script.onload = done));
      script.src = new URL(address, location).href;
      inside.document.body.append(script);
    }

    postMessage(data) {
      const copy = structuredClone(data);
      this.loaded.then(() => this.frame.contentWindow?.onmessage({ data: copy }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
