// Search in pages opened from a disk (file:), where browsers start no worker: the worker's script
// runs in a hidden frame. mkdocs-material would fetch such a script from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      const base = new URL(url, document.baseURI);
      const load = (address) =>
        new Promise((done, failed) => {
          const script = frame.contentDocument.createElement("script");
          script.src = new URL(address, base);
          script.onload = done;
          script.onerror = failed;
          frame.contentDocument.body.append(script);
        });
      inner.importScripts = (...addresses) =>
        addresses.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame = frame;
      this.started = load(base);
    }
    postMessage(data) {
      this.started.then(() => {
        const inner = this.frame.contentWindow;
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      });
    }
    terminate() {
      this.frame.remove();
    }
  };
}
