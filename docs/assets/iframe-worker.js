// Search in pages opened as files: browsers start no worker there, so the search's script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #waiting = [];

    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.addEventListener("load", () => this.#start(frame.contentWindow, url), { once: true });
      document.documentElement.append(frame);
    }

    #start(inside, url) {
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href);
      script.addEventListener("load", () => {
        this.postMessage = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
        this.#waiting.forEach(this.postMessage);
      });
      inside.document.head.append(script);
    }

    postMessage(data) {
      this.#waiting.push(data);
    }
  };
}
