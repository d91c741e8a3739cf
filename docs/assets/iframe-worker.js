/* Browsers start no worker from a page on disk. There the search runs in a hidden frame, which looks like a worker. */
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.inside.document.createElement("script")
      script.src = address
      this.loaded = new Promise(resolve => script.addEventListener("load", resolve))
      this.inside.document.body.append(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
