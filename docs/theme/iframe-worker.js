// Search in pages opened from disk: browsers start no worker from a file, so a hidden frame does the worker's work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = url;
      this.deliver = (data) => inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      this.ready = new Promise((resolve) => (script.onload = resolve));
      inner.document.body.append(script);
    }
    postMessage(data) {
      this.ready.then(() => this.deliver(data));
    }
    terminate() {}
  };
}
